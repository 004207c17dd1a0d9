"""Two CPU ranks on one machine, compared with perceptrain 0.1.0 and PyTorch's DDP over Gloo."""

import json
import pathlib
import subprocess
import tempfile

from run import BIN, PEER_PYTHON, ROOT, BenchError, Command, Row

PEERS = ROOT / "bench" / "peers"
TWO_RANKS = {"LOCKSTEP_NPROCS": "2", "LOCKSTEP_COMPUTE_SETUP": "cpu"}


def sine():
    runs = pathlib.Path(tempfile.gettempdir()) / "lockstep-bench-runs"
    return Row(
        "sine, two processes, start to end, against perceptrain", "s",
        ours=Command([BIN / "sine"], env={**TWO_RANKS, "LOCKSTEP_ROOT_FOLDER": str(runs)}, wall_clock=True),
        peer=Command([PEER_PYTHON, PEERS / "perceptrain_sine.py"], wall_clock=True),
        floor=10, repeat=3, warm_up=1)


def all_reduce_us(backend, size):
    """Measures the median time of an all-reduce of this size between two processes."""

    def measure(unit):
        argv = [str(BIN / "lockstep"), "bench", "collectives", "--backend", backend, "--sizes", size, "--json"]
        done = subprocess.run(argv, text=True, capture_output=True, timeout=300)
        if done.returncode != 0:
            raise BenchError(done.stderr)
        return json.loads(done.stdout)["rows"][0]["latency_us"]

    return measure


def all_reduce(size, floor):
    return Row(f"all-reduce of {size}, shm against gloo", "us",
               ours=all_reduce_us("shm", size), peer=all_reduce_us("gloo", size), floor=floor)


def ddp_steps(workload, steps, peer_steps, floor, what):
    return Row(
        f"steps of {what}, against PyTorch DDP", "steps/s",
        ours=Command([BIN / "bench" / "ddp_steps", workload, str(steps)], env=TWO_RANKS),
        peer=Command([PEER_PYTHON, PEERS / "ddp_steps.py", workload, str(peer_steps)]),
        higher_is_better=True, floor=floor)


def rows():
    return [
        sine(),
        all_reduce("4K", 50),
        all_reduce("1M", 5),
        all_reduce("16M", 2),
        ddp_steps("sine", 20000, 1000, 15, "the sine MLP 1-16-1, batch 16"),
        ddp_steps("mlp", 4000, 500, 4, "an MLP 64-256-256-10, batch 64"),
        ddp_steps("cnn", 60, 60, 1.1, "Princeton's CNN, batch 64"),
        Row("gradient memory beyond one copy of the gradients", "bytes", reference=0,
            ours=Command([BIN / "bench" / "ddp_steps", "cnn", "memory"], env={**TWO_RANKS, "LOCKSTEP_BACKEND": "gloo"}),
            floor=1, repeat=1, warm_up=0),
        Row("first line of main to first step, against the same in Python", "s",
            ours=Command([BIN / "bench" / "first_step"], env=TWO_RANKS),
            peer=Command([PEER_PYTHON, PEERS / "first_step.py"]), floor=5),
    ]
