#!/usr/bin/env python3
"""Compiles each public header alone, without the precompiled header: script/lint-headers.py TORCH_DIR

Users pay for what a header includes, so the seconds are printed, and torch/torch.h is refused, also if another header
includes it.
"""

import concurrent.futures
import functools
import os
import pathlib
import subprocess
import sys
import time


@functools.cache
def mpi_includes():
    """For lockstep/mpi.h, which includes MPI's header."""
    done = subprocess.run(["mpicc", "--showme:incdirs"], capture_output=True, text=True, check=True)
    return [f"-I{folder}" for folder in done.stdout.split()]


def check(header, torch):
    """(seconds, error text or '')."""
    start = time.perf_counter()
    include = torch / "include"
    done = subprocess.run(
        ["clang++", "-std=c++20", "-fsyntax-only", "-H", "-w", "-x", "c++", "-Iinclude", f"-I{include}",
         f"-I{include}/torch/csrc/api/include", "-DUSE_DISTRIBUTED", "-DUSE_C10D_GLOO", *mpi_includes(), str(header)],
        stderr=subprocess.PIPE, text=True)
    seconds = time.perf_counter() - start
    # -H writes one line ". path" for each header, with a dot for each level.
    included = [line for line in done.stderr.splitlines() if line.startswith(".")]
    if done.returncode != 0:
        return seconds, "\n".join(line for line in done.stderr.splitlines() if not line.startswith("."))
    if any(line.endswith("/torch/torch.h") for line in included):
        return seconds, "includes torch/torch.h, which costs its users half a minute"
    return seconds, ""


def main():
    torch = pathlib.Path(sys.argv[1])
    headers = sorted(pathlib.Path("include/lockstep").glob("*.h"))
    failed = not headers
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for header, (seconds, error) in zip(headers, pool.map(lambda h: check(h, torch), headers)):
            print(f"  {seconds:4.1f} s  {header}")
            if error:
                print(f"{header}: {error}")
                failed = True
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
