"""Seconds to save or load the state of bench/checkpoint_io.cpp with torch.save and torch.load.

  checkpoint_io.py save|save-synced|load|resume FILE

torch.save does no fsync; save-synced adds one, and resume the copy into a model's tensors.
load and resume read what a save of the same program left there.
"""

import json
import os
import sys
import time

import torch

TENSORS, ROWS, COLUMNS = 64, 4096, 1024


def state():
    return {f"layer{i}.weight": torch.rand(ROWS, COLUMNS) for i in range(TENSORS)}


def save(path, synced):
    tensors = state()
    if os.path.exists(path):
        os.remove(path)
    start = time.perf_counter()
    torch.save(tensors, path)
    if synced:
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
    return time.perf_counter() - start


def load(path, into_a_model):
    model = state() if into_a_model else {}
    start = time.perf_counter()
    tensors = torch.load(path)
    for name, parameter in model.items():
        parameter.copy_(tensors[name])
    return time.perf_counter() - start


def main():
    what, path = sys.argv[1:]
    seconds = save(path, what == "save-synced") if what.startswith("save") else load(path, what == "resume")
    print(json.dumps({"value": seconds, "unit": "s"}))


if __name__ == "__main__":
    main()
