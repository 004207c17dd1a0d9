"""Context: a Python model whose file C++ reads."""

import pathlib

import torch

model = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))


def check():
    assert pathlib.Path("weights.pt").is_file() or pathlib.Path("model.pt").is_file()
