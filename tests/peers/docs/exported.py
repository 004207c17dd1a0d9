"""Context: a Python model that C++ trains."""

import pathlib

import torch

model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
x = torch.ones(8, 3)


def check():
    assert "linear" in str(torch.export.load("model.pt2").graph)
    assert pathlib.Path("model.pt2").stat().st_size > 0
