"""Runs one worker script under real torchrun and under `lockstep run`, and records the same facts
about both, so that they can be compared."""

import collections
import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

PROGRAMS = pathlib.Path(__file__).parent / "programs"
PYTHON = str(pathlib.Path(sys.executable).parent / "python3")  # the Python that lockstep run finds in PATH
DEADLINE_S = 30
NODES_END_S = 20  # from the end of the first launcher of a job; waited for in full only if another one keeps running
ORPHAN_GRACE_S = 1.5  # longer than a launcher needs to clean up
DEFAULT_PORT = threading.Lock()  # held by the case for which torchrun may use port 29500; one at a time


def wait_until(condition, seconds=DEADLINE_S):
    """Returns whether the condition became true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def version_of(text):
    """Returns (2, 15) for 2.15.0+cu132."""
    return tuple(int(part) for part in text.split(".")[:2])


def alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


class Port:
    """A free port, reserved until a launcher listens on it: the socket is bound and does not listen."""

    def __init__(self):
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("127.0.0.1", 0))
        self.number = self._socket.getsockname()[1]

    def close(self):
        self._socket.close()


class Torchrun:
    """torchrun processes, forked from a process that has imported torch."""

    name = "torchrun"

    def __init__(self):
        self._server = subprocess.Popen([PYTHON, str(PROGRAMS / "torchrun_server.py")], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)
        described = json.loads(self._server.stdout.readline())
        self.flags = described["flags"]
        self.version = version_of(described["version"])
        self._lock = threading.Condition()
        self._answers = collections.defaultdict(dict)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self._server.stdout:
            answer = json.loads(line)
            with self._lock:
                self._answers[answer["id"]].update(answer)
                self._lock.notify_all()

    def start(self, arguments, environment, folder, out, err, cpus, closed, nodes):
        number = f"{threading.get_ident()}.{time.monotonic_ns()}"
        with self._lock:
            self._server.stdin.write(json.dumps({
                "id": number, "arguments": arguments, "environment": environment, "folder": str(folder),
                "stdout": str(out), "stderr": str(err), "cpus": cpus,
                "closed": closed, "nodes": nodes}) + "\n")
            self._server.stdin.flush()
            if not self._lock.wait_for(lambda: "pid" in self._answers[number], DEADLINE_S):
                raise RuntimeError("the torchrun server does not answer")
        return Launched(self._answers[number]["pid"], lambda: self._answers[number].get("status"))

    def close(self):
        self._server.stdin.close()
        self._server.wait(DEADLINE_S)


class Command:
    """A launcher that is started as a command."""

    def __init__(self, name, command):
        self.name = name
        self._command = [str(part) for part in command]

    def start(self, arguments, environment, folder, out, err, cpus, closed, nodes):
        command = ["taskset", "--cpu-list", ",".join(map(str, cpus)), *self._command, *arguments]
        for fd in closed:
            command = ["sh", "-c", f'unset PWD; exec "$@" {fd}>&-', "sh", *command]
        with open(folder / "file", "rb") as in_file, open(out, "wb") as out_file, open(err, "wb") as err_file:
            process = subprocess.Popen(command, env=environment, cwd=folder, stdin=in_file,
                                       stdout=out_file, stderr=err_file, start_new_session=True)
        return Launched(process.pid, process.poll)


class Launched:
    def __init__(self, pid, status):
        self.pid = pid
        self.status = status  # None while it runs

    def send(self, name):
        if self.status() is None:
            os.kill(self.pid, getattr(signal, name))


class Run:
    """One case under one launcher. `case` is a run_cases.Case."""

    def __init__(self, launcher, case, folder):
        self._launcher = launcher
        self._case = case
        self._folder = pathlib.Path(folder)
        self._reports = self._folder / "reports"
        self._port = Port()
        for name in ("reports", "tmp", "logs", "work"):
            (self._folder / name).mkdir(parents=True)
        (self._folder / "work" / "file").touch()
        (self._folder / "work" / "plain").write_text("exit 0\n")
        (self._folder / "work" / "plain").chmod(0o755)
        (self._folder / "work" / "report.py").symlink_to(PROGRAMS / "report.py")

    # --- running ---

    def _fill(self, text):
        for name, value in (("{port}", str(self._port.number)), ("{programs}", str(PROGRAMS)),
                            ("{case}", str(self._folder)), ("{bin}", str(pathlib.Path(sys.executable).parent))):
            text = text.replace(name, value)
        return text

    def _environment(self):
        environment = {"PATH": "{bin}:/usr/bin:/bin", "LC_ALL": "C.UTF-8", "HOME": "{case}", "TMPDIR": "{case}/tmp",
                       "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", "CONFORMANCE_OUT": "{case}/reports",
                       "CONFORMANCE_DO": self._case.worker, **self._case.environment}
        return {name: self._fill(value) for name, value in environment.items() if value is not None}

    def _files(self, pattern):
        return sorted(self._reports.glob(pattern))

    def _workers(self):
        return [json.loads(path.read_text()) for path in self._files("*.start")]

    def _children(self):
        return [json.loads(path.read_text()) for path in self._files("*.child")]

    def _signal(self, launched):
        waiting = self._case.waiting
        if not wait_until(lambda: len(self._files("*.waits")) == waiting or not self._running(launched)):
            raise AssertionError(f"{self._case.id}: the workers do not come up")
        launched[0].send(self._case.signal)
        wait_until(lambda: len(self._files("*.signals")) == waiting or not self._running(launched))

    def _running(self, launched):
        return [one for one in launched if one.status() is None]

    def run(self):
        try:
            with DEFAULT_PORT if self._case.default_port else contextlib.nullcontext():
                return self._run()
        finally:
            self._port.close()

    def _run(self):
        launched = []
        environment = self._environment()
        cpus = sorted(os.sched_getaffinity(0))[:self._case.cpus or None]
        try:
            for node, arguments in enumerate(self._case.nodes):
                launched.append(self._launcher.start([self._fill(one) for one in arguments], environment,
                                                     self._folder / "work", self._folder / f"out.{node}",
                                                     self._folder / f"err.{node}", cpus,
                                                     self._case.closed, len(self._case.nodes)))
            if self._case.signal:
                self._signal(launched)
                if len(self._files("*.signals")) == self._case.waiting:
                    (self._reports / "stop").touch()
            if not wait_until(lambda: len(self._running(launched)) < len(launched)):
                raise AssertionError(f"{self._case.id}: {self._launcher.name} does not end:\n{self._text('err', 0)}")
            left_running = not wait_until(lambda: not self._running(launched), NODES_END_S)
            orphans = not left_running and self._outlive(one["pid"] for one in self._workers())
            children_left = self._outlive(self._children())
        finally:
            self._clean_up(launched)
        return {"left running": left_running, "orphans": orphans, "children left": children_left,
                **self._facts([one.status() for one in launched])}

    def _outlive(self, pids):
        """Whether any of these processes keeps running after its launcher."""
        pids = list(pids)
        return not wait_until(lambda: not any(map(alive, pids)), ORPHAN_GRACE_S)

    def _clean_up(self, launched):
        (self._reports / "stop").touch()
        for one in self._running(launched):
            one.send("SIGKILL")
        wait_until(lambda: not any(map(alive, [*(worker["pid"] for worker in self._workers()), *self._children()])), 1)
        for pid in [*(worker["pid"] for worker in self._workers()), *self._children()]:
            if alive(pid):
                os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not self._running(launched))

    # --- facts ---

    def _text(self, stream, node):
        return (self._folder / f"{stream}.{node}").read_text(errors="replace")

    def _plain(self, text):
        """The text without parts that differ in every run: folders, ports, random names."""
        text = text.replace(str(self._folder), "<case>")
        text = re.sub(r"(torchelastic_[a-z0-9_]{8}|lockstep(?:-run)?_[A-Za-z0-9]{6})(?=/|$)", "<temporary>", text)
        text = re.sub(r"_([a-z0-9_]{8}|[A-Za-z0-9]{6})(?=/attempt_)", "_<random>", text)
        return re.sub(r"\b[0-9a-f]{8}-?([0-9a-f]{4}-?){3}[0-9a-f]{12}(?![0-9a-f])", "<uuid>", text)

    def _variables(self, environment):
        plain = {name: value if name == "PATH" else self._plain(value) for name, value in environment.items()}
        port = plain.get("MASTER_PORT")
        if port == str(self._port.number):
            plain["MASTER_PORT"] = "<given>"
        elif port not in (None, "29500"):
            plain["MASTER_PORT"] = "<free>"
        # Only in the environment of the launcher, and in values that a case gives to both launchers.
        return {name: value.replace(str(self._port.number), "<port>") if name.startswith("PET_") else value
                for name, value in plain.items()}

    def _tree(self, folder):
        """[path below the folder, its lines]; the lines are sorted, because ranks write at the same time."""
        def lines(path):
            return sorted(path.read_text(errors="backslashreplace").splitlines())
        return sorted([self._plain(str(path.relative_to(folder))), lines(path)]
                      for path in folder.rglob("*") if path.is_file())

    def _console(self, stream):
        """(lines of workers, their prefixes, lines of the launcher), of all nodes together."""
        lines, prefixes, own = collections.Counter(), collections.Counter(), []
        for node in range(len(self._case.nodes)):
            for line in self._text(stream, node).splitlines():
                found = re.fullmatch(r"(.*?)((?:out|err) of rank \d+, attempt \d+)", line)
                if found and not line.startswith("    "):  # four blanks: quoted in our report
                    prefixes[found[1]] += 1
                    lines[found[2]] += 1
                elif line.strip():
                    own.append(line)
        return lines, prefixes, own

    def _error_copy(self):
        path = self._folder / "launcher-error.json"
        return json.loads(path.read_text()) if path.exists() else None

    def _facts(self, statuses):
        reports = {path.stem: json.loads(path.read_text()) for path in self._files("*.start")}
        facts = {"status": statuses, "class": [exit_class(status) for status in statuses],
                 "signals": {path.stem: json.loads(path.read_text()) for path in self._files("*.signals")},
                 "workers": sorted(reports), "log files": [path for path, _ in self._tree(self._folder / "logs")],
                 "log contents": self._tree(self._folder / "logs"), "error copy": self._error_copy(),
                 "temporary files": [entry for entry in self._tree(self._folder / "tmp") if entry[0][0] == "<"],
                 "temporary folders": sum(path.is_dir() and self._plain(path.name) == "<temporary>"
                                          for path in (self._folder / "tmp").iterdir())}
        for stream in ("out", "err"):
            facts[f"std{stream}"], facts[f"std{stream} prefix"], own = self._console(stream)
            # At the end torchrun's nodes race with each other and sometimes print errors about it.
            facts[f"launcher on std{stream}"] = bool(own) if len(statuses) == 1 else None
            facts[f"text on std{stream}"] = "\n".join(own)
        for name in sorted(set().union(*reports.values()) - {"environment", "pid"}):
            facts[name] = PerWorker((rank, self._plain(str(report[name]))) for rank, report in reports.items())
        variables = {rank: self._variables(report["environment"]) for rank, report in reports.items()}
        for name in sorted(set().union(*variables.values())):
            facts[name] = PerWorker((rank, seen.get(name)) for rank, seen in variables.items())
        facts["root cause"] = root_cause(facts["text on stderr"])
        facts["said of threads"] = said_of_threads(facts["text on stderr"])
        shutil.rmtree(self._folder / "tmp")
        return facts


def differing(theirs, ours):
    """The names of facts that differ. If other workers ran, facts of workers are not compared."""
    same_workers = theirs["workers"] == ours["workers"]
    names = [name for name in {**theirs, **ours} if not name.startswith("text on ")]
    return {name for name in names if theirs.get(name) != ours.get(name)
            and (same_workers or not isinstance(theirs.get(name, ours.get(name)), PerWorker))}


class PerWorker(dict):
    """Rank and attempt -> fact of this worker."""


def exit_class(status):
    if status == 0:
        return "success"
    return "usage" if status == 2 else "failure"


def said_of_threads(text):
    """The line that the launcher prints when it sets OMP_NUM_THREADS, or None."""
    found = re.search(r"^.*(?:Setting OMP_NUM_THREADS|OMP_NUM_THREADS=\d+ for each).*$", text, re.MULTILINE)
    return re.sub(r"\d+", "N", found[0]) if found else None


def root_cause(text):
    """(rank, exit code or minus the signal, message of its error file) in the report of either launcher."""
    theirs = re.search(r"Root Cause.*?rank +: (\d+) .*?exitcode +: (-?\d+).*?traceback : ([^\n]*)", text, re.DOTALL)
    if theirs:
        message = theirs[3] if "lost its way" in theirs[3] else None
        return int(theirs[1]), int(theirs[2]), message
    ours = re.search(r"\[run\] rank (\d+) .*? failed first: ([^\n]*)", text)
    if not ours:
        return None
    said = re.search(r"its error file says:\n +([^\n]*)", text)
    number = re.search(r"signal (\d+)|(\d+)", ours[2])
    code = -int(number[1]) if number and number[1] else int(number[2]) if number else None
    return int(ours[1]), code, said[1] if said else None
