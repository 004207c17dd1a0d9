"""Context: a Python model, and files that C++ wrote: its weights, and a script after one training step."""

import os
import pathlib
import subprocess

import torch

model = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
expected = {name: tensor.clone() for name, tensor in model.state_dict().items()}


def cpp(*arguments):
    program = pathlib.Path(os.environ["LOCKSTEP_BIN_DIR"]) / "test" / "interop_weights"
    subprocess.run([program, *arguments], check=True, timeout=120)


torch.save(expected, "python.pt")
cpp("convert", "python.pt", "weights.pt")
torch.jit.script(model).save("model.pt")
torch.save({"input": torch.randn(16, 4), "target": torch.randn(16, 3)}, "data.pt")
cpp("train", "model.pt", "data.pt", "1", "0.1", "trained_weights.pt", "trained.pt")
torch.nn.init.zeros_(model[0].weight)


def check():
    if "state" in globals():
        assert all(torch.equal(tensor, expected[name]) for name, tensor in model.state_dict().items())
    else:
        assert trained(torch.ones(2, 4)).shape == (2, 3)
