"""A job of `lockstep run` on the nodes of a network, and the rules that every job must follow."""

import collections
import contextlib
import itertools
import json
import os
import pathlib
import re
import signal
import socket
import struct
import subprocess
import time

from network import address

TIMEOUT = 60
MARK = "LOCKSTEP_NODES_TEST"
WORKER = pathlib.Path(__file__).parent / "programs" / "worker"
LISTEN, ESTABLISHED = 0x0A, 0x01


def wait_until(condition, what, timeout=TIMEOUT):
    """Polls until the condition returns a true value, and returns this value."""
    deadline = time.monotonic() + timeout
    while not (result := condition()):
        assert time.monotonic() < deadline, f"waited in vain until {what() if callable(what) else what}"
        time.sleep(0.02)
    return result


def marked_processes(mark):
    """The pids of all processes with the mark in their environment, without zombies."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for entry in os.listdir("/proc"):
        with contextlib.suppress(OSError):  # it has just ended
            if entry.isdigit() and wanted in pathlib.Path("/proc", entry, "environ").read_bytes().split(b"\0"):
                found.append(int(entry))
    return found


def _name_and_parent(pid):
    with contextlib.suppress(OSError):
        name, _, rest = pathlib.Path(f"/proc/{pid}/stat").read_text().partition(" (")[2].rpartition(") ")
        return name, int(rest.split()[1])
    return None, None


def _tcp_sockets(pid):
    """(state, local port, remote address, remote port) of each socket on the node of a process."""
    with contextlib.suppress(OSError):
        for line in pathlib.Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
            _, local, remote, state = line.split()[:4]
            host, port = remote.split(":")
            yield (int(state, 16), int(local.split(":")[1], 16),
                   socket.inet_ntoa(struct.pack("=I", int(host, 16))), int(port, 16))


class Launcher:
    """One `lockstep run` on one node."""

    def __init__(self, job, node, command, environment, output):
        self.job = job
        self.node = node
        self.output = output
        if node != 0:
            self._link_to_host = job.network.switch.links[node, 0]
            self._segments_before = self._link_to_host.segments
        self.started = time.monotonic()
        with open(output, "wb") as file:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file,
                                            env=environment, start_new_session=True)

    @property
    def pid(self):
        return self.process.pid

    @property
    def text(self):
        return self.output.read_text(errors="replace")

    @property
    def ended(self):
        return self.process.poll() is not None

    def kill(self, number=signal.SIGKILL):
        assert not self.ended, f"node {self.node} has ended already: {self.text}"
        self.process.send_signal(number)
        since = time.monotonic()
        if number == signal.SIGKILL:
            self.wait()  # the others may see its closed connections before this process sees its end
        return since

    def wait(self, timeout=TIMEOUT):
        """Returns the exit status; for a launcher that was killed, minus the signal."""
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"node {self.node} does not end\n{self.job.story()}") from None

    def is_in_meeting(self):
        """Whether the host listens; whether any other launcher has sent its hello, its join message and a heartbeat."""
        assert not self.ended, f"node {self.node} has ended already: {self.text}"
        if self.node == 0:
            return any(state == LISTEN and local == self.job.port for state, local, *_ in _tcp_sockets(self.pid))
        return self._link_to_host.segments - self._segments_before >= 3

    def wait_in_meeting(self):
        wait_until(self.is_in_meeting, lambda: f"node {self.node} is in the meeting\n{self.job.story()}")
        return self

    def kill_keeper(self):
        for pid in self.job.keepers():
            if _name_and_parent(pid)[1] == self.pid:
                os.kill(pid, signal.SIGKILL)
                return
        raise AssertionError(f"node {self.node} has no keeper")

    def freeze_node(self):
        """Sends SIGSTOP to all processes on this node. Returns a function that continues them."""
        def network(pid):
            return os.readlink(f"/proc/{pid}/ns/net")
        pids = [pid for pid in marked_processes(self.job.mark) if network(pid) == network(self.pid)]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)

        def wake():
            for pid in pids:
                # Processes that continued first may have ended this one by now.
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
        return wake

    def wait_to_say(self, words):
        wait_until(lambda: words in self.text, lambda: f"node {self.node} says '{words}'\n{self.job.story()}")

    def wait_to_take(self, number):
        """Waits until a signal that was sent is no longer pending; a second signal would otherwise be merged with it."""
        def taken():
            status = pathlib.Path(f"/proc/{self.pid}/status").read_text()
            return not int(re.search(r"^ShdPnd:\s*(\w+)", status, re.MULTILINE)[1], 16) >> (number - 1) & 1
        wait_until(taken, lambda: f"node {self.node} has taken signal {number}")

    def sees(self, node):
        """Whether the host still has a connection from a node."""
        return any(state == ESTABLISHED and local == self.job.port and where == address(node)
                   for state, local, where, _ in _tcp_sockets(self.pid))

    def wait_to_lose(self, node):
        wait_until(lambda: not self.sees(node), lambda: f"the host gives node {node} up\n{self.job.story()}")

    def root_cause(self):
        """Which rank failed first and how, as this launcher reports it."""
        found = re.findall(r"^\[run\] (rank \d+|node \d+) \(.*?\) failed first: (.*)$", self.text, re.MULTILINE)
        assert len(found) == 1, f"node {self.node} reports {found}\n{self.job.story()}"
        return found[0]


class Job:
    """Starts launchers, reads the workers' events, checks the rules."""

    def __init__(self, network, folder, binary, mark, nnodes, *, workers=2, max_restarts=0, port=29500,
                 flags=(), worker_flags=()):
        self.network = network
        self.folder = folder
        self.mark = mark
        self.nnodes = str(nnodes)
        self.is_open = ":" in self.nnodes
        self.max_nodes = int(self.nnodes.split(":")[-1])
        self.workers = workers
        self.max_restarts = max_restarts
        self.port = port
        self.launchers = []
        self._command = [str(binary), "run", "--nnodes", self.nnodes, "-n", str(workers),
                         "--max-restarts", str(max_restarts), *map(str, flags)]
        self._program = [str(WORKER), str(folder), *worker_flags]
        (folder / "tmp").mkdir()

    def start(self, node, *flags, rank=None, environment=None):
        """Starts the launcher of a node; rank is its --node-rank."""
        if self.is_open:
            meeting = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"{address(0)}:{self.port}"]
        else:
            meeting = ["--node-rank", node if rank is None else rank, "--master-addr", address(0),
                       "--master-port", self.port]
        command = [*self.network.inside(node), *self._command, *map(str, [*meeting, *flags]), *self._program]
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "PET_", "LOCKSTEP_"))}
        launcher = Launcher(self, node, command,
                            {**kept, MARK: self.mark, "HOME": str(self.folder), "TMPDIR": str(self.folder / "tmp"),
                             **(environment or {})},
                            self.folder / f"launcher-{len(self.launchers)}-node{node}.log")
        self.launchers.append(launcher)
        return launcher

    def start_all(self, nodes=None):
        return [self.start(node) for node in (range(self.max_nodes) if nodes is None else nodes)]

    # --- events of the workers

    def events(self):
        path = self.folder / "events"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def generation(self, number):
        """The events of a generation, by rank."""
        return sorted((e for e in self.events() if e["generation"] == number), key=lambda e: e["rank"])

    def wait_for_generation(self, number, num_nodes=None):
        """Waits until all ranks of a generation have started."""
        world = (self.max_nodes if num_nodes is None else num_nodes) * self.workers

        def complete():
            events = self.generation(number)
            return len(events) == world and events
        return wait_until(complete, lambda: f"generation {number} has {world} ranks\n{self.story()}")

    def generations(self):
        return sorted({e["generation"] for e in self.events()})

    def wait_until_gone(self, events):
        """Waits until the processes of these events have ended."""
        pids = {e["pid"] for e in events}
        wait_until(lambda: not pids & set(self.left_over()), lambda: f"{pids} have ended\n{self.story()}")

    # --- commands to the workers

    def order_failure(self, generation, rank, status):
        order = self.folder / f".order.{generation}.{rank}"
        order.write_text(str(status))
        order.rename(self.folder / f"fail.{generation}.{rank}")
        return time.monotonic()

    def kill_worker(self, generation, *ranks):
        pids = {e["rank"]: e["pid"] for e in self.generation(generation)}
        for rank in set(ranks) & set(pids):
            with contextlib.suppress(ProcessLookupError):  # the first one may have ended by itself
                os.kill(pids[rank], signal.SIGKILL)
        return time.monotonic()

    def finish(self):
        (self.folder / "finish").touch()

    # --- the end

    def wait(self, launchers=None, timeout=TIMEOUT):
        return [launcher.wait(timeout) for launcher in (launchers or self.launchers)]

    def succeed(self, launchers=None):
        """Lets the workers succeed, and expects that the launchers succeed too."""
        self.finish()
        statuses = self.wait(launchers)
        assert statuses == [0] * len(statuses), self.story()

    def check(self, failures=None, frozen=()):
        """Checks the rules that every job must follow. All launchers have ended.

        frozen: pids that could not be ended while they were stopped, and did not run.
        """
        for launcher in self.launchers:
            assert launcher.ended, self.story()
        wait_until(lambda: not self.left_over(), lambda: f"no process is left: {self.left_over()}\n{self.story()}", 10)
        generations = collections.defaultdict(list)
        for event in self.events():
            generations[event["generation"]].append(event)
        restarts = {}
        for number in sorted(generations):
            events = sorted(generations[number], key=lambda e: e["rank"])
            self._check_generation(events, frozen)
            restarts[number] = events[0]["restart"]
        # Only a restart after a failure counts. A generation that ends at once may leave no
        # event.
        for (a, before), (b, after) in itertools.pairwise(restarts.items()):
            assert 0 <= after - before <= b - a, f"{restarts}\n{self.story()}"
        assert all(count <= self.max_restarts for count in restarts.values()), f"{restarts}\n{self.story()}"
        if failures is not None:
            assert restarts and max(restarts.values()) == failures, f"{restarts}\n{self.story()}"

    def _check_generation(self, events, frozen):
        story = self.story
        assert not [e for e in events if e["overlaps"] not in (0, *frozen)], f"two generations at once\n{story()}"
        ranks = [e["rank"] for e in events]
        assert len(set(ranks)) == len(ranks), f"a rank runs twice\n{story()}"
        for name in ("world", "restart", "num_nodes", "master"):
            assert len({e[name] for e in events}) == 1, f"the ranks do not agree on {name}\n{story()}"
        assert all(0 <= e["rank"] < e["world"] for e in events), story()
        assert all(e["world"] == e["num_nodes"] * self.workers for e in events), story()
        assert all(e["rank"] == e["node"] * self.workers + e["local_rank"] for e in events), story()
        assert events[0]["master"].rpartition(":")[0] == address(0), story()
        hosts = {e["node"]: e["host"] for e in events}
        assert len(set(hosts.values())) == len(hosts), f"two nodes of the job on one\n{story()}"
        assert hosts.get(0, "node0") == "node0", f"rank 0 is not on node 0\n{story()}"
        assert all(hosts[e["node"]] == e["host"] for e in events), story()

    def left_over(self):
        return marked_processes(self.mark)

    def keepers(self):
        return [pid for pid in self.left_over() if _name_and_parent(pid)[0] == "lockstep-keeper"]

    def close(self):
        """Ends the remaining processes, after a test that failed or if launchers are stopped."""
        deadline = time.monotonic() + 10
        while (pids := self.left_over()) and time.monotonic() < deadline:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)
        for launcher in self.launchers:
            launcher.process.wait(10)
        assert not pids, f"processes that do not end: {pids}"

    def story(self):
        """All events and output, for the message of a test that fails."""
        lines = [str(event) for event in self.events()]
        for launcher in self.launchers:
            lines.append(f"--- node {launcher.node}: status {launcher.process.poll()}\n{launcher.text}")
        return "\n".join(lines)


def one_root_cause(launchers):
    """Returns the root cause that all launchers report; they must agree."""
    causes = {launcher.root_cause() for launcher in launchers}
    assert len(causes) == 1, f"{causes}\n{launchers[0].job.story()}"
    return causes.pop()


def fault_lasts(seconds):
    """Sleeps for the duration of a fault; never used to wait for an event."""
    time.sleep(seconds)


def print_time(what, since):
    """Prints a measured time; the test compares it with a generous limit only."""
    seconds = time.monotonic() - since
    print(f"measured: {what}: {seconds:.2f} s")
    assert seconds < 10, f"{what}: {seconds} s"
