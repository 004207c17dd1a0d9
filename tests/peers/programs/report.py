"""A worker that records how it was started, prints one line on each stream, and then follows
CONFORMANCE_DO: words separated by spaces, each for all ranks, or RANK=word for one rank.

  exit:N      ends with status N                  kill:NAME   ends by a signal
  once:N      ends with status N, in the first attempt only
  meet        waits until every rank of this attempt has reached this word
  met:N       waits until N ranks of this attempt wait
  error:text  writes an error file whose message is a string   error:nested  as Python's @record does
  error:broken  writes one that is not JSON       lines:N     prints N more lines on each stream
  bytes       prints bytes without text or lines  leave       starts a process that outlives it
  wait        until a signal or the file `stop` in CONFORMANCE_OUT, at most half a minute
  stay        as wait, but ignores signals and the file, for two minutes
"""

import json
import os
import signal
import sys
import time

OUT = os.environ["CONFORMANCE_OUT"]
RANK = os.environ["RANK"]
ATTEMPT = os.environ["TORCHELASTIC_RESTART_COUNT"]
NAME = f"{RANK}.{ATTEMPT}"
ENDING = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT")


def publish(name, value):
    """Writes a file that appears with its full contents."""
    path = os.path.join(OUT, name)
    with open(path + ".part", "w", encoding="utf-8") as file:
        json.dump(value, file)
    os.rename(path + ".part", path)


def inherited():
    """What a process inherits from its parent, except arguments and environment."""
    with open("/proc/self/status", encoding="ascii") as file:
        status = dict(line.rstrip("\n").split(":\t") for line in file if line.startswith(("SigBlk", "SigIgn", "Umask")))
    opened = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
              if int(fd) > 2 and os.path.exists(f"/proc/self/fd/{fd}")]
    return {"stdin": os.readlink("/proc/self/fd/0"), "descriptors": opened, "blocked signals": status["SigBlk"],
            "ignored signals": status["SigIgn"], "umask": status["Umask"], "cpus": sorted(os.sched_getaffinity(0)),
            "priority": os.getpriority(os.PRIO_PROCESS, 0)}


def say():
    # One write per line, because under torchrun the ranks share the console.
    for stream, name in ((sys.stdout, "out"), (sys.stderr, "err")):
        if stream is not None:  # it may be closed
            stream.write(f"{name} of rank {RANK}, attempt {ATTEMPT}\n")
            stream.flush()


def report():
    say()
    publish(f"{NAME}.start", {
        "environment": dict(os.environ), "arguments": sys.argv[1:], "program": os.path.basename(sys.argv[0]),
        "folder": os.getcwd(), "pid": os.getpid(), "session": os.getsid(0) == os.getpid(),
        "unbuffered": sys.stderr.write_through, "python": sys.executable, **inherited()})


def poll(condition, seconds=30):
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)


def count(what):
    return sum(name.endswith(f".{ATTEMPT}.{what}") for name in os.listdir(OUT))


def leave_error(shape):
    text = f"rank {RANK} has lost its way"
    content = {"message": text, "timestamp": "1700000000"} if shape == "text" else {
        "message": {"message": text, "extraInfo": {"py_callstack": f"Traceback: {text}", "timestamp": "1700000000"}}}
    with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w", encoding="utf-8") as file:
        file.write("{" if shape == "broken" else json.dumps(content))


def leave_process():
    if os.fork() == 0:
        publish(f"{NAME}.child", os.getpid())
        poll(lambda: os.path.exists(os.path.join(OUT, "stop")))
        os._exit(0)
    poll(lambda: count("child"))


def wait(stays=False):
    seen = []

    def on_signal(number, _):
        name = signal.Signals(number).name
        seen.append(name)
        publish(f"{NAME}.signals", seen)
        if name in ENDING and not stays:
            sys.exit(0)

    for name in (*ENDING, "SIGUSR1", "SIGUSR2"):
        signal.signal(getattr(signal, name), on_signal)
    publish(f"{NAME}.waits", True)
    if stays:
        poll(lambda: False, 120)
    poll(lambda: os.path.exists(os.path.join(OUT, "stop")))


def act(word):
    what, _, value = word.partition(":")
    if what == "exit":
        sys.exit(int(value))
    elif what == "once" and ATTEMPT == "0":
        sys.exit(int(value))
    elif what == "kill":
        os.kill(os.getpid(), getattr(signal, value))
    elif what == "error":
        leave_error(value)
    elif what == "lines":
        for _ in range(int(value)):
            say()
    elif what == "bytes":
        os.write(1, b"\xff\xfe\x00 \r \x1b[1m no end of line")
    elif what == "leave":
        leave_process()
    elif what in ("wait", "stay"):
        wait(stays=what == "stay")
    elif what == "meet":
        poll(lambda: count("start") == int(os.environ["WORLD_SIZE"]))
    elif what == "met":
        poll(lambda: count("waits") == int(value))


if __name__ == "__main__":
    report()
    for item in os.environ.get("CONFORMANCE_DO", "").split():
        for_rank, _, action = item.rpartition("=")
        if for_rank in ("", RANK):
            act(action)
