"""Tests on a real Slurm: tests/slurm/cluster.py runs pytest on its nodes."""

import os
import pathlib
import subprocess
import time

import pytest

TIMEOUT = 120
NODES = ("127.0.0.11", "127.0.0.12")
PAGES_NODES = ("127.0.0.21", "127.0.0.22", "127.0.0.23")

FINAL_STATES = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")


def wait_until(condition, what, timeout=TIMEOUT):
    """Polls until the condition returns a true value, and returns this value."""
    deadline = time.monotonic() + timeout
    while not (result := condition()):
        assert time.monotonic() < deadline, f"waited in vain until {what() if callable(what) else what}"
        time.sleep(0.05)
    return result


class Slurm:
    """Slurm's commands, and the paths of this test."""

    def __init__(self, folder, bin_dir):
        self.folder = folder
        self.bin = bin_dir
        self.worker = str(pathlib.Path(__file__).parent / "programs" / "worker")

    def run(self, *command, check=True, **options):
        done = subprocess.run([str(word) for word in command], cwd=self.folder, text=True, capture_output=True,
                              timeout=TIMEOUT, **options)
        assert not check or done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def start(self, *command):
        return subprocess.Popen([str(word) for word in command], cwd=self.folder, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def lockstep(self, *arguments, **options):
        return self.run(self.bin / "lockstep", *arguments, **options)

    def batch(self, body, *flags):
        """Submits a script and returns the job's id; its log is log-ID.out."""
        script = self.folder / f"script-{time.monotonic_ns()}"
        script.write_text(f"#!/bin/bash\n{body}\n")
        return self.run("sbatch", "--parsable", "--output=log-%j.out", *flags, script).stdout.strip()

    def field(self, job, name):
        """A field of the job's record; only for fields without spaces."""
        for word in self.run("scontrol", "show", "job", "-o", job).stdout.split():
            if word.startswith(name + "="):
                return word[len(name) + 1:]
        raise KeyError(name)

    def state(self, job):
        return self.field(job, "JobState")

    def wait_for(self, job, state):
        def report():
            return f"job {job} is {state}: {self.run('scontrol', 'show', 'job', job).stdout}{self.log(job)}"

        def there():
            now = self.state(job)
            assert now in (state, "PREEMPTED") or now not in FINAL_STATES, f"waited in vain until {report()}"
            return now == state

        wait_until(there, report)

    def wait_until_ended(self, job):
        wait_until(lambda: self.state(job) in FINAL_STATES, lambda: f"job {job} has ended: {self.log(job)}")

    def log(self, job):
        path = self.folder / f"log-{job}.out"
        return path.read_text() if path.exists() else ""

    def wait_for_files(self, pattern, count):
        return wait_until(lambda: (found := sorted(self.folder.glob(pattern))) and len(found) == count and found,
                          lambda: f"there are {count} files {pattern}: {sorted(os.listdir(self.folder))}")

    def processes_of(self, job):
        """The pids of all processes of a job, on both nodes."""
        marks = (f"SLURM_JOB_ID={job}".encode(), b"SLURM_CONF=" + os.environb[b"SLURM_CONF"])
        found = []
        for entry in pathlib.Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and set(marks) <= set((entry / "environ").read_bytes().split(b"\0")):
                    found.append(int(entry.name))
            except OSError:
                continue  # it has just ended, or is not ours
        return found


@pytest.fixture
def slurm(tmp_path):
    """A cluster without jobs; jobs that a test leaves are cancelled."""
    yield Slurm(tmp_path, pathlib.Path(os.environ["LOCKSTEP_BIN_DIR"]))
    tool = Slurm(tmp_path, None)
    tool.run("scancel", "--user", str(os.getuid()))
    wait_until(lambda: tool.run("squeue", "-h").stdout == "", "no job is left")
    for node in NODES:
        if "DRAIN" in tool.run("scontrol", "show", "node", node).stdout:
            tool.run("scontrol", "update", f"NodeName={node}", "State=RESUME")
    wait_until(lambda: tool.run("sinfo", "-h", "-N", "-p", "main", "-o", "%T").stdout.split() == ["idle"] * 2,
               "both nodes are idle")


def _not_run(config):
    stats = config.pluginmanager.get_plugin("terminalreporter").stats
    return [report for outcome in ("skipped", "xfailed", "xpassed") for report in stats.get(outcome, [])]


def pytest_sessionfinish(session, exitstatus):
    """A test that does not run counts as failed."""
    if exitstatus == 0 and _not_run(session.config):
        session.exitstatus = 1
