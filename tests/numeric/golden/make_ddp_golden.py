#!/usr/bin/env python3
"""Trains small models with PyTorch's DistributedDataParallel and writes their final weights.

    python3 make_ddp_golden.py [FOLDER [CASE...]]

Two gloo ranks, one thread each, 50 steps. Weights and data come from integer
arithmetic (formula), so that the C++ side (support/parity_training.cpp) computes the very
same ones. For each case NAME.bin holds the parameters, then the floating-point
buffers, of rank 0 in registration order: float32, little endian. golden.json says
which and with which version of PyTorch.

The optimizers run with foreach=False: one tensor at a time, as torch::optim does.
The kernels are those that every x86-64 processor runs, so that the files do not
depend on the machine that wrote them. Unfused Adam is no case to keep as a file: its
square root comes from MKL, whose last bits differ between processors of Intel and
AMD whatever it is told. It is compared live only.
"""

import json
import os
import sys
import tempfile

# Read by ATen, MKL and oneDNN when they start; the C++ side sets the same.
PORTABLE_KERNELS = {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE", "ONEDNN_MAX_CPU_ISA": "SSE41"}
os.environ.update(PORTABLE_KERNELS)

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.multiprocessing as mp  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

STEPS = 50
WORLD_SIZE = 2
BATCH = 16


def formula(sizes, salt):
    numel = 1
    for size in sizes:
        numel *= size
    i = torch.arange(numel, dtype=torch.int64)
    mixed = ((i * 40503 + salt * 9973 + 7) * 25173 + 13849).remainder(65536)
    return (mixed.to(torch.float32) / 65536 - 0.5).view(sizes)


def set_parameters(module):
    with torch.no_grad():
        for salt, parameter in enumerate(module.parameters()):
            fan_in = parameter.numel() // parameter.size(0) if parameter.dim() > 1 else 1
            scale = 2.0
            power = 1
            while power < fan_in:
                scale /= 2
                power *= 4
            parameter.copy_(formula(parameter.shape, salt) * scale)


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(1, 16)
        self.fc2 = nn.Linear(16, 1)

    def forward(self, x):
        return self.fc2(F.relu(self.fc1(x)))

    def loss(self, output, salt):
        x = formula([BATCH, 1], salt)
        return F.mse_loss(output, x * x * 4 - x)

    def batch(self, salt):
        return formula([BATCH, 1], salt)


class Cnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 4, 3, padding=1)
        self.bn = nn.BatchNorm2d(4)
        self.conv2 = nn.Conv2d(4, 8, 3)
        self.fc = nn.Linear(8 * 2 * 2, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.bn(self.conv1(x))), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 3, 1)
        return self.fc(x.flatten(1))

    def loss(self, output, salt):
        labels = (torch.arange(BATCH, dtype=torch.int64) * 7 + salt).remainder(10)
        return F.cross_entropy(output, labels)

    def batch(self, salt):
        return formula([BATCH, 1, 12, 12], salt)


def make_optimizer(name, parameters):
    if name == "sgd":
        return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, foreach=False)
    return torch.optim.Adam(parameters, lr=0.01, foreach=False, fused=name == "fused_adam")


CASES = {f"{model.__name__.lower()}_{optimizer}": (model, optimizer)
         for model in (Mlp, Cnn) for optimizer in ("sgd", "adam", "fused_adam")}


PORTABLE_CASES = [name for name in CASES if not name.endswith("_adam") or name.endswith("_fused_adam")]


def train(rank, folder, cases, rendezvous):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=WORLD_SIZE)
    for name in cases:
        model_class, optimizer_name = CASES[name]
        module = model_class()
        set_parameters(module)
        model = nn.parallel.DistributedDataParallel(module)
        optimizer = make_optimizer(optimizer_name, model.parameters())
        for step in range(STEPS):
            salt = 1000 + step * WORLD_SIZE + rank
            optimizer.zero_grad()
            module.loss(model(module.batch(salt)), salt).backward()
            optimizer.step()
        if rank == 0:
            values = list(module.parameters()) + [b for b in module.buffers() if b.is_floating_point()]
            with open(os.path.join(folder, name + ".bin"), "wb") as file:
                for value in values:
                    file.write(value.detach().contiguous().numpy().astype("<f4").tobytes())
    dist.barrier()
    dist.destroy_process_group()
    # The last model may keep the group alive until the interpreter ends, and Gloo's threads can then
    # abort the process, as PyTorch 2.15 did once in many runs. All results are written by now.
    os._exit(0)


def main():
    folder = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.abspath(__file__))
    cases = sys.argv[2:] or PORTABLE_CASES
    os.makedirs(folder, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        mp.spawn(train, args=(folder, cases, os.path.join(temporary, "rendezvous")), nprocs=WORLD_SIZE)
    with open(os.path.join(folder, "golden.json"), "w") as file:
        json.dump({"torch": torch.__version__.split("+")[0], "world_size": WORLD_SIZE, "steps": STEPS,
                   "batch": BATCH, "cases": cases}, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main()
