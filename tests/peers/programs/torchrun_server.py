"""Real torchrun without its start-up time: torch.distributed.run is imported once, and
every request is a fork that becomes one torchrun process.

Requests and answers are lines of JSON on standard input and output:
  {"id", "arguments", "environment", "folder", "stdout", "stderr", "cpus",
   "closed", "nodes"} -> {"id", "pid"}, later {"id", "status"}
A negative status is minus the signal that ended it. The first line out has torchrun's flags and version.
"""

import atexit
import gc
import json
import os
import pathlib
import select
import signal
import sys
import threading
import time

LEAVE_TOGETHER_S = 10


def describe(parser):
    """Every flag of torchrun: its spellings, its name, and whether a PET_ variable sets it."""
    from torch.distributed.argparse_util import check_env, env
    return [{"flags": action.option_strings, "name": action.dest, "variable": isinstance(action, (env, check_env))}
            for action in parser._actions if action.option_strings and action.dest != "help"]


def answer(**message):
    os.write(1, json.dumps(message).encode() + b"\n")


def become(request, imported_environment):
    """Sets up everything that a new process inherits. Called in the fork."""
    os.setsid()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.sched_setaffinity(0, request["cpus"])
    os.chdir(request["folder"])
    for fd, path, flags in ((0, "file", os.O_RDONLY), (1, request["stdout"], os.O_WRONLY | os.O_CREAT),
                            (2, request["stderr"], os.O_WRONLY | os.O_CREAT)):
        opened = os.open(path, flags, 0o644)
        os.dup2(opened, fd)
        os.close(opened)
    for fd in request["closed"]:
        os.close(fd)
    os.environ.clear()
    os.environ.update({**imported_environment, **request["environment"]})
    sys.argv[1:] = request["arguments"]
    if request["nodes"] > 1:
        leave_together(request["nodes"], pathlib.Path(request["environment"]["TMPDIR"]))


def leave_together(nodes, folder):
    """Lets no launcher of a job that succeeded leave before the others. The store ends with the launcher that hosts
    it, and one that still reads the last barrier then fails, or ends seconds later: a race of torchrun's own."""
    from torch.distributed.elastic.agent.server.api import SimpleElasticAgent
    barrier = SimpleElasticAgent._exit_barrier

    def barrier_and_files(agent):
        barrier(agent)
        (folder / f"past_barrier.{os.getpid()}").touch()
        deadline = time.monotonic() + LEAVE_TOGETHER_S
        while len(list(folder.glob("past_barrier.*"))) < nodes and time.monotonic() < deadline:
            time.sleep(0.005)

    SimpleElasticAgent._exit_barrier = barrier_and_files


def reap():
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        yield pid, os.waitstatus_to_exitcode(status)


def serve(imported_environment):
    """Returns in every fork, which then runs torchrun, and in the server when its input ends."""
    woken, wake = os.pipe()
    for fd in (woken, wake):
        os.set_blocking(fd, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    running, pending = {}, b""
    while True:
        for pid, status in reap():
            answer(id=running.pop(pid), status=status)
        if woken in select.select([0, woken], [], [])[0]:
            os.read(woken, 1024)
            continue
        received = os.read(0, 1 << 16)
        if not received:
            return False
        *requests, pending = (pending + received).split(b"\n")
        for request in map(json.loads, requests):
            pid = os.fork()
            if pid == 0:
                os.close(woken)
                os.close(wake)
                become(request, imported_environment)
                return True
            running[pid] = request["id"]
            answer(id=request["id"], pid=pid)


def finish(run):
    """Ends this process as Python does after its last line, but without unloading torch."""
    status = 0
    try:
        run()
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        status = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    before = dict(os.environ)
    import torch.distributed.run
    added = {name: value for name, value in os.environ.items() if name not in before}
    answer(flags=describe(torch.distributed.run.get_args_parser()), version=torch.__version__)
    gc.freeze()  # garbage collection in a fork would copy every page of torch
    if serve(added):
        finish(torch.distributed.run.main)
