"""The workloads of bench/models.h in PyTorch, and how a rank of PyTorch ends."""

import math
import os
import sys

import torch
import torch.distributed as dist
from torch import nn


class PrincetonCnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3)
        self.conv2 = nn.Conv2d(32, 64, 3)
        self.fc1 = nn.Linear(9216, 128)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, x):
        x = torch.relu(self.conv1(x))
        x = torch.relu(self.conv2(x))
        x = torch.max_pool2d(x, 2).flatten(1)
        return self.fc2(torch.relu(self.fc1(x)))


def make_workload(name):
    """Returns model, input, target, loss function."""
    if name == "sine":
        x = torch.rand(16, 1)
        model = nn.Sequential(nn.Linear(1, 16), nn.ReLU(), nn.Linear(16, 1))
        return model, x, torch.sin(2 * math.pi * x), nn.functional.mse_loss
    if name == "zero_mlp":
        model = nn.Sequential(
            nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)
        )
        return model, torch.rand(16, 256), torch.randint(0, 10, (16,)), nn.functional.cross_entropy
    classes = torch.randint(0, 10, (64,))
    if name == "mlp":
        model = nn.Sequential(
            nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)
        )
        return model, torch.rand(64, 64), classes, nn.functional.cross_entropy
    if name == "cnn":
        return PrincetonCnn(), torch.rand(64, 1, 28, 28), classes, nn.functional.cross_entropy
    raise ValueError(name)


def leave_group():
    """Ends this rank without taking the interpreter down: DistributedDataParallel keeps the group alive until then, and
    Gloo's threads may abort the process, as PyTorch 2.15 does in some runs."""
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)
