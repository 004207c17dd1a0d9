"""Common code of the training programs of the peer tests: runs cases as one rank of several."""

import os
import pathlib
import sys

import torch
import torch.distributed as dist
from safetensors.torch import save_file


def save_state(model, folder):
    save_file({name: tensor.contiguous() for name, tensor in model.state_dict().items()},
              folder / "weights.safetensors")


def leave_group():
    """Ends this process, whose results are on disk.

    DistributedDataParallel may keep the group alive until the interpreter is taken down, where
    Gloo's threads can abort the process: PyTorch 2.15 did once in many runs.
    """
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def main(run_case):
    """Calls run_case(file, rank, size) for each file on the command line."""
    rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    torch.set_num_threads(1)
    if size > 1:
        dist.init_process_group("gloo", f"file://{os.environ['STORE_FILE']}", rank=rank, world_size=size)
    for case in sys.argv[1:]:
        run_case(pathlib.Path(case), rank, size)
    if size > 1:
        leave_group()
