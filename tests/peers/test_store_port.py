"""torch.distributed can use the port that `lockstep run` reserves for the store of rank 0."""

import json
import os
import subprocess

import pytest
from launchers import DEADLINE_S, PROGRAMS, PYTHON, wait_until

PROGRAM = str(PROGRAMS / "all_reduce.py")


def run(bin_dir, folder, *arguments, flags=(), **environment):
    """Returns the output of each rank and attempt, by RANK.ATTEMPT, and the output of the launcher."""
    folder.mkdir()
    done = subprocess.run(
        [str(bin_dir / "lockstep"), "run", "-n", "2", *flags, PROGRAM, *arguments], text=True, capture_output=True,
        timeout=2 * DEADLINE_S, env={**os.environ, "PYTHON_EXEC": PYTHON, "GLOO_SOCKET_IFNAME": "lo",
                                     "STORE_OUT": str(folder), **environment})
    assert done.returncode == 0, done.stdout + done.stderr
    return {path.name: json.loads(path.read_text()) for path in folder.iterdir()}


@pytest.fixture
def ranks_with_torch(tmp_path):
    path = tmp_path / "ranks"
    server = subprocess.Popen([PYTHON, PROGRAM, "--serve", str(path)])
    assert wait_until(lambda: path.exists() or server.poll() is not None) and server.poll() is None
    yield str(path)
    server.terminate()
    server.wait(DEADLINE_S)


def test_python_ranks_restart_on_a_new_port(bin_dir, tmp_path):
    seen = run(bin_dir, tmp_path / "out", flags=("--max-restarts", "1"), STORE_FAILS="1")
    assert sorted(seen) == ["0.0", "0.1", "1.0", "1.1"]
    assert all(rank["sums"] == [3.0] for rank in seen.values())
    first, second = ({seen[f"{rank}.{attempt}"]["port"] for rank in (0, 1)} for attempt in (0, 1))
    assert len(first) == len(second) == 1, "ranks of one attempt agree"
    assert first != second


def test_twenty_jobs_in_a_row(bin_dir, tmp_path, ranks_with_torch):
    for number in range(20):
        seen = run(bin_dir, tmp_path / f"out{number}", "--by", ranks_with_torch)
        assert {name: rank["sums"] for name, rank in seen.items()} == {"0.0": [3.0], "1.0": [3.0]}
