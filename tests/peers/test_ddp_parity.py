"""Two ranks of Lockstep against two of the PyTorch that runs this test, bit for bit.

Unlike the golden files, this compares on this very machine: LibTorch may choose
other kernels on another processor.
"""

import os
import pathlib
import subprocess
import sys

import pytest

TESTS = pathlib.Path(__file__).resolve().parent.parent
GENERATOR = TESTS / "numeric" / "golden" / "make_ddp_golden.py"
CASES = [f"{model}_{optimizer}" for model in ("mlp", "cnn") for optimizer in ("sgd", "adam", "fused_adam")]


def program():
    folder = os.environ.get("LOCKSTEP_BIN_DIR", TESTS.parent / "build" / "bin")
    return pathlib.Path(folder) / "test" / "ddp_parity"


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    ours, peer = tmp_path_factory.mktemp("ours"), tmp_path_factory.mktemp("pytorch")
    environment = dict(os.environ, OMP_NUM_THREADS="1")
    subprocess.run([program(), ours], check=True, timeout=120, env=environment)
    subprocess.run([sys.executable, GENERATOR, peer, *CASES], check=True, timeout=300, env=environment)
    return ours, peer


@pytest.mark.parametrize("case", CASES)
def test_fifty_steps_end_with_the_same_bits(results, case):
    ours, peer = results
    expected = (peer / f"{case}.bin").read_bytes()
    assert expected
    assert (ours / f"{case}.bin").read_bytes() == expected
