"""Models that torch.export saves, in eager PyTorch: what bench/exported_steps.cpp measures of their files.

    python bench/peers/exported_steps.py export NAME FILE
    python bench/peers/exported_steps.py train NAME STEPS
    python bench/peers/exported_steps.py load FILE
"""

import json
import sys
import time

import torch
import torchvision
from torch import nn


class Cell(nn.Module):
    """A step of an LSTM, of whose result a head predicts."""

    def __init__(self):
        super().__init__()
        self.cell, self.head = nn.LSTMCell(32, 64), nn.Linear(64, 8)

    def forward(self, x, h, c):
        return self.head(self.cell(x, (h, c))[0])


class Chain(nn.Module):
    """2000 tiny operators."""

    def __init__(self):
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(8))

    def forward(self, x):
        for _ in range(1000):
            x = torch.tanh(x) + self.shift
        return x


# The model and the shapes of its inputs.
MODELS = {
    "resnet18": (lambda: torchvision.models.resnet18(num_classes=10), [(8, 3, 64, 64)]),
    "mlp": (lambda: nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 8)), [(32, 16)]),
    "lstm_cell": (Cell, [(16, 32), (16, 64), (16, 64)]),
    "vit_b_16": (lambda: torchvision.models.vit_b_16(image_size=32), [(2, 3, 32, 32)]),
    "chain": (Chain, [(8,)]),
}


def make(name):
    torch.manual_seed(0)
    model, shapes = MODELS[name]
    return model(), [torch.randn(shape) for shape in shapes]


def export(name, file):
    model, inputs = make(name)
    torch.export.save(torch.export.export(model, tuple(inputs)), file)


def steps_per_second(name, steps):
    torch.set_num_threads(2)
    model, inputs = make(name)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step():
        optimizer.zero_grad()
        model(*inputs).square().mean().backward()
        optimizer.step()

    for _ in range(max(3, steps // 10)):
        step()
    start = time.perf_counter()
    for _ in range(steps):
        step()
    return steps / (time.perf_counter() - start)


def seconds_to_load(file):
    start = time.perf_counter()
    torch.export.load(file)
    return time.perf_counter() - start


if __name__ == "__main__":
    mode, *arguments = sys.argv[1:]
    if mode == "export":
        export(*arguments)
    elif mode == "train":
        print(json.dumps({"value": steps_per_second(arguments[0], int(arguments[1])), "unit": "steps/s"}))
    else:
        print(json.dumps({"value": seconds_to_load(arguments[0]), "unit": "s"}))
