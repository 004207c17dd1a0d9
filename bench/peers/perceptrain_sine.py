"""Peer of examples/sine.cpp: the same training with perceptrain on two CPU processes."""

import math
import tempfile

import torch
from perceptrain import TrainConfig, Trainer
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

if __name__ == "__main__":
    Trainer.set_use_grad(True)
    x = torch.linspace(0, 1, 100).reshape(-1, 1)
    loader = DataLoader(TensorDataset(x, torch.sin(2 * math.pi * x)), batch_size=16, shuffle=True)
    model = nn.Sequential(nn.Linear(1, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = optim.SGD(model.parameters(), lr=0.01)
    with tempfile.TemporaryDirectory() as folder:
        config = TrainConfig(
            backend="gloo", nprocs=2, compute_setup="cpu", print_every=5, max_iter=50, root_folder=folder)
        Trainer(model, optimizer, config, loss_fn="mse").fit(loader)
