"""The cost of a build in CPU seconds (user and system), from an empty folder and without a compiler cache.

The same seconds are compared with those of one fixed LibTorch source on the same machine: what
a row takes on another machine follows from what that source takes there.
"""

import functools
import os
import pathlib
import resource
import shutil
import subprocess
import tempfile

from run import ROOT, BenchError, Row

FOLDER = pathlib.Path(tempfile.gettempdir()) / "lockstep-bench-build"
DEMO = ["lockstep_program", "lockstep_tensor_program"]
FIXED_SOURCE = """
#include <torch/torch.h>
int main() {
  torch::nn::Sequential model(torch::nn::Linear(1, 16), torch::nn::ReLU(), torch::nn::Linear(16, 1));
  torch::optim::SGD optimizer(model->parameters(), 0.01);
  torch::mse_loss(model->forward(torch::rand({4, 1})), torch::rand({4, 1})).backward();
  optimizer.step();
}
"""


def cpu_seconds(argv, **options):
    """CPU seconds of the command and all its children."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([str(a) for a in argv], cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          env={**os.environ, "CCACHE_DISABLE": "1"}, timeout=3600, **options)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 0:
        raise BenchError(f"exit status {done.returncode}: {' '.join(map(str, argv))}\n{done.stdout[-2000:]}")
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def build(*targets):
    return cpu_seconds(["cmake", "--build", FOLDER, *(["--target", *targets] if targets else [])])


@functools.cache
def demo_seconds():
    shutil.rmtree(FOLDER, ignore_errors=True)
    configure = ["cmake", "--preset", "dev", "-B", FOLDER, "-Wno-dev", "--log-level=WARNING"]
    return cpu_seconds(configure) + build(*DEMO)


@functools.cache
def everything_seconds():
    return demo_seconds() + build()


def changed_source_seconds(unit):
    demo_seconds()
    os.utime(ROOT / "src" / "train" / "fit_loop.cpp")
    return build(*DEMO)


@functools.cache
def fixed_source_seconds():
    include = ROOT / ".deps" / "torch" / "include"
    argv = ["clang++", "-std=c++20", "-O2", "-w", f"-I{include}", f"-I{include}/torch/csrc/api/include", "-x", "c++",
            "-c", "-", "-o", os.devnull]
    return cpu_seconds(argv, input=FIXED_SOURCE)


def seconds(name, measure, floor_seconds, repeat=1):
    return Row(name, "CPU s", ours=measure, reference=floor_seconds, repeat=repeat, warm_up=0)


def in_fixed_sources(name, measure, floor_seconds):
    # The fixed source took 17 CPU s on the machine on which this was first measured.
    return Row(f"{name}, against one fixed LibTorch source", "CPU s", ours=measure,
               peer=lambda unit: fixed_source_seconds(), floor=round(17 / floor_seconds, 4), repeat=1, warm_up=0)


def rows():
    demo, everything = (lambda unit: demo_seconds()), (lambda unit: everything_seconds())
    return [
        seconds("what script/demo builds, from nothing", demo, 500),
        in_fixed_sources("what script/demo builds", demo, 500),
        seconds("after a change of one source of src/train", changed_source_seconds, 15, repeat=3),
        seconds("everything, from nothing", everything, 1300),
        in_fixed_sources("everything", everything, 1300),
    ]
