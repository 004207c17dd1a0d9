"""`lockstep run` compared with torchrun, and the cost of its failures and restarts."""

import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import tempfile
import time

from run import BIN, PEER_PYTHON, BenchError, Command, Row

LOCKSTEP = str(BIN / "lockstep")
NODES = 3
RANKS_PER_NODE = 2
DEADLINE_S = 60


def no_op(ranks, floor):
    return Row(
        f"a program that does nothing, {ranks} ranks, against torchrun", "s",
        ours=Command([LOCKSTEP, "run", "-n", str(ranks), "true"], wall_clock=True),
        peer=Command([PEER_PYTHON, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--no-python",
                      "true"], wall_clock=True),
        floor=floor, repeat=5)


def launcher_memory(unit):
    """Resident memory of the launcher in MB, read by one of its workers."""
    done = subprocess.run([LOCKSTEP, "run", "sh", "-c", "grep VmRSS /proc/$PPID/status"], text=True,
                          capture_output=True, timeout=DEADLINE_S)
    if done.returncode != 0:
        raise BenchError(done.stderr)
    return int(done.stdout.split()[1]) / 1000


def restart_time(unit):
    """Seconds from the death of a worker to the first instruction of its successor."""
    with tempfile.TemporaryDirectory() as folder:
        worker = f"date +%s%N >> {folder}/times; [ $TORCHELASTIC_RESTART_COUNT = 1 ] || kill -9 $$"
        done = subprocess.run([LOCKSTEP, "run", "--max-restarts", "1", "sh", "-c", worker], text=True,
                              capture_output=True, timeout=DEADLINE_S)
        if done.returncode != 0:
            raise BenchError(done.stderr)
        died, restarted = map(int, pathlib.Path(folder, "times").read_text().split())
        return (restarted - died) / 1e9


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_until(condition, what):
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > deadline:
            raise BenchError(f"{what} within {DEADLINE_S} s")
        time.sleep(0.002)


def runs(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@contextlib.contextmanager
def job(folder):
    """A job on several nodes, which are launchers on this machine; yields the launchers and the pids of their workers."""
    port = free_port()
    launchers = [
        subprocess.Popen([LOCKSTEP, "run", "--nnodes", str(NODES), "--node-rank", str(node), "--master-port",
                          str(port), "-n", str(RANKS_PER_NODE), "sh", "-c",
                          f"echo $$ > {folder}/$RANK; exec sleep 1000"],
                         stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for node in range(NODES)]
    try:
        files = [pathlib.Path(folder, str(rank)) for rank in range(NODES * RANKS_PER_NODE)]
        wait_until(lambda: all(f.exists() and f.read_text().endswith("\n") for f in files), "no start")
        yield launchers, [int(f.read_text()) for f in files]
    finally:
        for launcher in launchers:
            launcher.kill()
            launcher.wait()


def time_to_gone(victim):
    """Seconds from the death of the victim's process to the end of every launcher and worker."""

    def measure(unit):
        with tempfile.TemporaryDirectory() as folder, job(folder) as (launchers, workers):
            start = time.monotonic()
            os.kill(victim(launchers, workers), signal.SIGKILL)
            wait_until(lambda: all(p.poll() is not None for p in launchers) and not any(map(runs, workers)),
                       "not all gone")
            return time.monotonic() - start

    return measure


def storm(launchers, seconds):
    def measure(unit):
        done = subprocess.run([str(BIN / "bench" / "rendezvous_storm"), str(launchers)], text=True,
                              capture_output=True, timeout=300)
        if done.returncode != 0:
            raise BenchError(done.stderr)
        result = json.loads(done.stdout)
        print(f"  {launchers} launchers: {done.stdout.strip()}")
        return result["value"]

    return Row(f"rendezvous of {launchers} launchers, at most {seconds} s", "s", ours=measure, reference=seconds,
               repeat=3, warm_up=0)


def rows():
    return [
        no_op(2, 100),
        no_op(8, 50),
        Row("memory of the launcher, at most 10 MB", "MB", ours=launcher_memory, reference=10, repeat=3),
        Row(f"a worker killed, to all gone on {NODES} nodes, at most 2 s", "s",
            ours=time_to_gone(lambda launchers, workers: workers[-1]), reference=2),
        Row(f"a launcher killed, to all gone on {NODES} nodes, at most 2 s", "s",
            ours=time_to_gone(lambda launchers, workers: launchers[-1].pid), reference=2),
        Row(f"the host's launcher killed, to all gone on {NODES} nodes, at most 2 s", "s",
            ours=time_to_gone(lambda launchers, workers: launchers[0].pid), reference=2),
        Row("a worker killed, to its successor's start, at most 0.1 s", "s", ours=restart_time, reference=0.1),
        storm(10, 5),
        storm(100, 5),
        storm(1000, 5),
        storm(4000, 20),
    ]
