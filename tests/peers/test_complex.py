"""Complex parameters on two ranks against PyTorch's DDP and optimizers, bit for bit."""

import json
import pathlib
import subprocess
import sys

import pytest

PEER = pathlib.Path(__file__).parent / "programs" / "complex_training.py"
CASES = [f"{dtype} {optimizer}" for dtype in ("complex64", "complex128") for optimizer in ("sgd", "adam", "adadelta")]


@pytest.fixture(scope="module")
def pytorch(tmp_path_factory):
    store = tmp_path_factory.mktemp("store") / "store"
    ranks = [subprocess.Popen([sys.executable, PEER, str(rank), store], stdout=subprocess.PIPE, text=True)
             for rank in range(2)]
    lines = [rank.communicate(timeout=300)[0] for rank in ranks][0].splitlines()
    assert [rank.returncode for rank in ranks] == [0, 0]
    return dict(zip(CASES, map(json.loads, lines), strict=True))


@pytest.mark.parametrize("backend", ["gloo", "shm"])
def test_complex_training(bin_dir, pytorch, backend):
    done = subprocess.run([bin_dir / "test" / "complex_training", backend], capture_output=True, text=True, check=True,
                          timeout=120)
    ours = dict(zip(CASES, map(json.loads, done.stdout.splitlines()), strict=True))
    for case in CASES:
        assert ours[case]["losses"] == pytorch[case]["losses"], case
        assert ours[case]["weights"] == pytorch[case]["weights"], case
        # Of buckets, not of parameters: the order of the sum differs.
        assert ours[case]["norms"] == pytest.approx(pytorch[case]["norms"], rel=1e-6), case
