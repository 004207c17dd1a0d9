"""Rows of the suite `zero`: the CPU optimizer that updates offloaded states."""

import os

from run import BIN, Command, Row

PROGRAM = BIN / "bench" / "zero_cpu_adam"
CORES = str(len(os.sched_getaffinity(0)))


def against_fused(what, peer, threads, name):
    return Row(name, "ms", ours=Command([PROGRAM, what, threads]), peer=Command([PROGRAM, peer, threads]),
               floor=1.0, repeat=5)


def against_memory(threads, name):
    return Row(name, "GB/s", ours=Command([PROGRAM, "bandwidth", threads]), peer=Command([PROGRAM, "stream", threads]),
               higher_is_better=True, floor=0.7, repeat=5)


def rows():
    return [
        against_fused("adam", "fused", "1", "Adam of 100M elements on one core, against LibTorch's fused Adam"),
        against_fused("adam", "fused", CORES, "Adam of 100M elements on all cores, against LibTorch's fused Adam"),
        against_fused("mixed", "fused-mixed", "1",
                      "Adam with bf16 gradients and a bf16 copy on one core, against LibTorch's in four passes"),
        against_memory("1", "memory that Adam moves on one core, against the fastest of copy, triad and update"),
        against_memory(CORES, "memory that Adam moves on all cores, against the fastest of copy, triad and update"),
    ]
