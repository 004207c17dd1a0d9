"""Peer of bench/ddp_steps.cpp: PyTorch DDP over Gloo, two ranks on this machine.

usage: ddp_steps.py sine|mlp|cnn STEPS [sgd|adamw]
"""

import json
import os
import sys
import tempfile
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from workloads import leave_group, make_workload


def make_optimizer(name, parameters):
    if name == "adamw":
        return torch.optim.AdamW(parameters, lr=1e-3, fused=True)
    return torch.optim.SGD(parameters, lr=0.01)


def run(rank, world_size, store, name, steps, optimizer_name):
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // world_size))
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world_size)
    model, data, target, loss_function = make_workload(name)
    model = DistributedDataParallel(model)
    optimizer = make_optimizer(optimizer_name, model.parameters())

    def step():
        optimizer.zero_grad()
        loss_function(model(data), target).backward()
        optimizer.step()

    for _ in range(steps // 10 + 1):
        step()
    dist.barrier()
    start = time.perf_counter()
    for _ in range(steps):
        step()
    seconds = time.perf_counter() - start
    if rank == 0:
        print(json.dumps({"value": steps / seconds, "unit": "steps/s"}), flush=True)
    leave_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        arguments = (2, os.path.join(folder, "store"), sys.argv[1], int(sys.argv[2]),
                     sys.argv[3] if len(sys.argv) > 3 else "sgd")
        torch.multiprocessing.spawn(run, arguments, nprocs=2)
