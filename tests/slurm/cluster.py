#!/usr/bin/env python3
"""Runs a command on a real Slurm cluster on this machine.

    tests/slurm/cluster.py COMMAND ARGUMENT...

starts munged, slurmctld and five slurmd in a temporary folder, runs COMMAND with SLURM_CONF set, ends everything that it
started, and exits with the status of COMMAND. `tests/slurm/cluster.py bash` opens a shell on the cluster.

Needs Debian's slurmctld, slurmd, slurm-client and munge. Needs no root, no systemd, no fixed port and no entry in
/etc/hosts, because the names of the nodes are their addresses.
"""

import ctypes
import os
import pathlib
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

NODES = ("127.0.0.11", "127.0.0.12")
# Large enough for the jobs of the pages in docs/pages.md. Slurm believes every number in slurm.conf.
PAGES_NODES = ("127.0.0.21", "127.0.0.22", "127.0.0.23")
START_TIMEOUT = 60
STOP_TIMEOUT = 20

CONF = """\
ClusterName=lockstep
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ctld_port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
# A requeued job starts again when its old credential has expired: after two minutes by default, after 5 s at least.
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdLogFile={folder}/slurmd-%n.log
SlurmctldLogFile={folder}/slurmctld.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=1,batch_sched_delay=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
KillWait=3
ReturnToService=2
SlurmdParameters=config_overrides
MpiDefault=none
GresTypes=gpu
MailProg={folder}/mail
{nodes}
PartitionName=main Nodes={main_nodes} Default=YES MaxTime=INFINITE State=UP PriorityTier=5 PreemptMode=OFF
PartitionName=low Nodes={main_nodes} MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=20
PartitionName=high Nodes={main_nodes} MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
PartitionName=accel Nodes={pages_nodes} MaxTime=INFINITE State=UP PriorityTier=5 PreemptMode=OFF
"""

NODE = ("NodeName={name} NodeHostname={host} NodeAddr={name} Port={port} CPUs={cpus} RealMemory={mib} Gres=gpu:{gpus} "
        "State=UNKNOWN")
MAIN_SIZE = {"cpus": 4, "mib": 4000, "gpus": 2}
PAGES_SIZE = {"cpus": 128, "mib": 512000, "gpus": 8}

# Notes its arguments instead of sending a mail.
MAIL = """\
#!/bin/sh
echo "$@" >> {folder}/mails
"""

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
_libc = ctypes.CDLL(None, use_errno=True)


def _die_with_parent():
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _reserve_port(address):
    """A socket with a free port: bound, but not listening, so that only a daemon can listen on the port."""
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind((address, 0))
    return reserved


def descendants(pid):
    """The pids of all processes below this one."""
    children = {}
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                # The name is in brackets and may contain anything; the parent is the second field after it.
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, IndexError):
                continue  # it has just ended
            children.setdefault(parent, []).append(int(entry.name))
    found, rest = [], [pid]
    while rest:
        below = children.get(rest.pop(), [])
        found += below
        rest += below
    return found


class Cluster:
    """Starts the daemons; close() ends them and all processes that they started."""

    def __init__(self):
        # Orphans of the daemons (slurmstepd and the tasks below it) become our own
        # children, so that close() finds them.
        if _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="lockstep-slurm-"))
        self.folder.chmod(0o755)
        self.daemons = []
        self.reserved = []
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    @property
    def conf(self):
        return self.folder / "slurm.conf"

    def environment(self):
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "SBATCH_", "SRUN_"))}
        return {**kept, "SLURM_CONF": str(self.conf)}

    def _start(self):
        self._write_configuration()
        key = self.folder / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)
        files = [f"--{name}={self.folder}/munge.{name.split('-')[0]}"
                 for name in ("key-file", "socket", "pid-file", "log-file", "seed-file")]
        self._daemon("munged", "--foreground", *files)
        self._wait_until("munged listens", (self.folder / "munge.socket").exists)
        self._daemon("slurmctld", "-D", "-f", str(self.conf))
        for name in NODES + PAGES_NODES:
            self._daemon("slurmd", "-D", "-N", name, "-f", str(self.conf))
        self._wait_until("all nodes are idle", self._nodes_idle)

    def _write_configuration(self):
        (self.folder / "state").mkdir()
        for i in range(PAGES_SIZE["gpus"]):
            # Any character device counts as a GPU.
            (self.folder / f"gpu{i}").symlink_to("/dev/null")
        host = socket.gethostname().split(".")[0]
        names = NODES + PAGES_NODES
        self.reserved = [_reserve_port(address) for address in ("127.0.0.1", *names)]
        ctld_port, *ports = [s.getsockname()[1] for s in self.reserved]
        nodes = "\n".join(NODE.format(name=n, host=host, port=p, **(MAIN_SIZE if n in NODES else PAGES_SIZE))
                          for n, p in zip(names, ports))
        user = subprocess.check_output(["id", "-un"], text=True).strip()
        self.conf.write_text(CONF.format(host=host, folder=self.folder, ctld_port=ctld_port, user=user, nodes=nodes,
                                         main_nodes=",".join(NODES), pages_nodes=",".join(PAGES_NODES)))
        (self.folder / "gres.conf").write_text("".join(
            f"NodeName={','.join(group)} Name=gpu File={self.folder}/gpu[0-{size['gpus'] - 1}]\n"
            for group, size in ((NODES, MAIN_SIZE), (PAGES_NODES, PAGES_SIZE))))
        mail = self.folder / "mail"
        mail.write_text(MAIL.format(folder=self.folder))
        mail.chmod(0o755)

    def _daemon(self, name, *arguments):
        program = shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
        if program is None:
            raise FileNotFoundError(f"{name} is not installed: script/setup --slurm")
        with open(self.folder / f"{name}-{len(self.daemons)}.out", "wb") as output:
            self.daemons.append(subprocess.Popen([program, *arguments], stdin=subprocess.DEVNULL, stdout=output,
                                                 stderr=output, env=self.environment(), preexec_fn=_die_with_parent))

    def _nodes_idle(self):
        done = subprocess.run(["sinfo", "-h", "-N", "-p", "main,accel", "-o", "%T"], env=self.environment(),
                              capture_output=True, text=True)
        return done.stdout.split() == ["idle"] * len(NODES + PAGES_NODES)

    def _wait_until(self, what, condition):
        deadline = time.monotonic() + START_TIMEOUT
        while not condition():
            dead = [d.args[0] for d in self.daemons if d.poll() is not None]
            if dead or time.monotonic() > deadline:
                raise RuntimeError(f"waited in vain until {what}; ended: {dead}\n{self.logs()}")
            time.sleep(0.05)

    def logs(self):
        # Daemons in the foreground also write their log to standard error.
        return "\n".join(f"--- {path.name}\n{path.read_text(errors='replace')[-4000:]}"
                         for path in sorted(self.folder.glob("*.out")))

    def close(self):
        """Ends all descendants of this process and removes the folder."""
        deadline = time.monotonic() + STOP_TIMEOUT
        # Daemons end before their jobs, because a running slurmctld would requeue the jobs.
        for daemon in reversed(self.daemons):
            daemon.kill()
            daemon.wait()
        while (pids := descendants(os.getpid())) and time.monotonic() < deadline:
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            _reap_orphans()
            time.sleep(0.01)
        for reserved in self.reserved:
            reserved.close()
        shutil.rmtree(self.folder, ignore_errors=True)
        if pids:
            raise RuntimeError(f"processes that do not end: {pids}")


def _reap_orphans():
    try:
        while os.waitpid(-1, os.WNOHANG)[0] != 0:
            pass
    except ChildProcessError:
        pass


def main(command):
    if not command:
        print(__doc__, file=sys.stderr)
        return 2
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda received, _: sys.exit(128 + received))
    cluster = Cluster()
    try:
        child = subprocess.Popen(command, env=cluster.environment(), preexec_fn=_die_with_parent)
        status = child.wait()
        if status != 0:
            print(cluster.logs(), file=sys.stderr)
        return status if status >= 0 else 128 - status
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    finally:
        cluster.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
