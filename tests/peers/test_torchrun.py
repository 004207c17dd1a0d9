"""The example programs under real torchrun, which starts them and hosts their store."""

import json
import os
import re
import subprocess
import sys


def torchrun(arguments, environment=None):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--no-python", "--nproc-per-node", "2"]
    return subprocess.run(command + arguments, env={**os.environ, **(environment or {})}, text=True,
                          capture_output=True, timeout=120)


def test_sine_joins_torchrun(bin_dir, tmp_path):
    done = torchrun([str(bin_dir / "sine"), "--compute_setup", "cpu", "--root_folder", str(tmp_path)])
    assert done.returncode == 0, done.stderr
    assert re.search(r"P  0\|cpu    \| Iteration       5\| Train_Loss: \d+\.\d{7} -\n", done.stdout)
    assert "P  1|" not in done.stdout
    assert "on 2 ranks" in done.stdout
    assert len(list(tmp_path.iterdir())) == 1, "one run folder for the job"


def test_ranks_joins_torchrun(bin_dir):
    done = torchrun([str(bin_dir / "ranks"), "--compute_setup", "cpu"])
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("host=")]
    assert [re.search(r"rank=(\d) world_size=2 local_rank=(\d)", line).groups() for line in lines] == [
        ("0", "0"), ("1", "1")]
    assert all("launcher=torchrun" in line for line in lines)


def test_torchrun_shows_why_a_rank_failed(bin_dir):
    """The error file has torchrun's format, so torchrun's report contains Lockstep's message."""
    done = torchrun([str(bin_dir / "sine"), "--root_folder", "/dev/null/runs", "--compute_setup", "cpu"])
    assert done.returncode != 0
    assert "cannot make a run folder under root_folder '/dev/null/runs'" in done.stderr
    report = done.stderr[done.stderr.index("Root Cause"):]
    assert "cannot make a run folder" in report


def test_nprocs_that_contradicts_torchrun_is_refused(bin_dir):
    done = torchrun([str(bin_dir / "sine"), "--nprocs", "3", "--compute_setup", "cpu"])
    assert done.returncode != 0
    assert "WORLD_SIZE='2'" in done.stderr and "nprocs" in done.stderr


def test_doctor_reports_every_rank(bin_dir):
    done = torchrun([str(bin_dir / "lockstep"), "doctor", "--json"])
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert [rank["map"]["rank"] for rank in report["ranks"]] == [0, 1]
    assert all(rank["self_test"]["ok"] for rank in report["ranks"])
