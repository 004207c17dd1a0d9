"""Trains models of exported_models.py in eager PyTorch: see exported_training.cpp.

    exported_training.py CASE.json...

RANK and WORLD_SIZE set the rank of DistributedDataParallel; the ranks connect through STORE_FILE.
"""

import json

import exported_models
import rank_cases
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn


def make_optimizer(name, parameters):
    if name == "adam":
        return torch.optim.Adam(parameters, lr=1e-3)
    if name == "adam_fused":
        return torch.optim.Adam(parameters, lr=1e-3, fused=True)
    if name == "adamw_fused":
        return torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.01, fused=True)
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9, weight_decay=5e-4)


def train(spec, model, rank, size):
    parallel = nn.parallel.DistributedDataParallel(model) if size > 1 else model
    optimizer = make_optimizer(spec["optimizer"], model.parameters())
    torch.manual_seed(spec["seed"] + 100 + rank)
    losses = []
    for step in range(spec["steps"]):
        inputs, classes = exported_models.make_batch(spec, step * size + rank)
        optimizer.zero_grad()
        loss = F.cross_entropy(exported_models.call(spec, parallel, inputs), classes)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def run_case(file, rank, size):
    spec = json.loads(file.read_text())
    torch.manual_seed(spec["seed"])
    model = exported_models.MODELS[spec["model"]][0]()
    (file.parent / f"losses.{rank}.json").write_text(json.dumps(train(spec, model, rank, size)))
    if rank != 0:
        return
    torch.save(model.state_dict(), file.parent / "weights.pt")
    # In evaluation nn.MultiheadAttention has a kernel of its own, which rounds differently and is not what was exported.
    torch.backends.mha.set_fastpath_enabled(False)
    model.eval()
    with torch.no_grad():
        output = exported_models.call(spec, model, exported_models.make_batch(spec, -1)[0])
    save_file({"output": output.contiguous()}, file.parent / "prediction.safetensors")


if __name__ == "__main__":
    rank_cases.main(run_case)
