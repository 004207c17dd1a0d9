"""Peer of bench/first_step.cpp: from the first line to the end of the first step."""

import time

START = time.monotonic()

import json  # noqa: E402
import os  # noqa: E402
import tempfile  # noqa: E402

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402
from workloads import leave_group, make_workload  # noqa: E402


def run(rank, world_size, store, start):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world_size)
    model, data, target, loss_function = make_workload("sine")
    model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loss_function(model(data), target).backward()
    optimizer.step()
    if rank == 0:
        print(json.dumps({"value": time.monotonic() - start, "unit": "s"}), flush=True)
    leave_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(run, (2, os.path.join(folder, "store"), START), nprocs=2)
