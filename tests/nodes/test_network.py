"""Tests of the test tools: the switch, and the worker that detects overlapping generations."""

import json
import os
import subprocess
import sys

from job import WORKER, wait_until
from network import address

# Sends datagrams to another node and prints the number and the round trip of each that came back.
ASK = """
import socket, sys, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(float(sys.argv[3]))
sent = {}
for i in range(int(sys.argv[2])):
    sent[i] = time.monotonic()
    s.sendto(b"%d" % i, (sys.argv[1], 9000))
try:
    while sent:
        i = int(s.recv(100))
        print(i, time.monotonic() - sent.pop(i))
except (TimeoutError, OSError):
    pass
"""
ECHO = """
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(("0.0.0.0", 9000))
print("ready", flush=True)
while True:
    s.sendto(*s.recvfrom(100))
"""


def _ask(network, count, patience=1.0):
    """Numbers and round trips of the datagrams from node 0 to node 1 that came back."""
    with subprocess.Popen([*network.inside(1), sys.executable, "-c", ECHO], stdout=subprocess.PIPE) as echo:
        try:
            echo.stdout.readline()
            done = subprocess.run([*network.inside(0), sys.executable, "-c", ASK, address(1), str(count),
                                   str(patience)], capture_output=True, text=True, timeout=60)
        finally:
            echo.kill()
    assert done.returncode == 0, done.stderr
    return [(int(number), float(seconds)) for number, seconds in map(str.split, done.stdout.splitlines())]


def test_switch_carries(network):
    assert [number for number, _ in _ask(network, 50)] == list(range(50))


def test_switch_delays(network):
    network.set_links(delay=0.05)
    assert min(seconds for _, seconds in _ask(network, 5)) >= 0.1


def test_switch_drops(network):
    network.set_links(loss=0.2)
    came = len(_ask(network, 200, 0.5))
    assert 80 < came < 170, "64 % are expected"


def test_switch_reorders(network):
    network.set_links(reorder=0.3)
    numbers = [number for number, _ in _ask(network, 50)]
    assert sorted(numbers) == list(range(50)) and numbers != sorted(numbers)


def test_switch_throttles(network):
    network.set_links(rate=1000)
    assert max(seconds for _, seconds in _ask(network, 10)) > 0.25, "each datagram has 29 bytes"


def test_switch_cuts_one_direction(network):
    network.switch.links[1, 0].cut = True
    assert not _ask(network, 5, 0.2) and network.switch.dropped >= 5


def test_cable_is_unplugged_and_plugged(network):
    network.unplug(1)
    before = _ask(network, 5, 0.2)
    network.plug(1)
    assert not before and len(_ask(network, 5)) == 5


def _start_worker(folder, generation):
    names = {name: "0" for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "GROUP_RANK", "GROUP_WORLD_SIZE",
                                    "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT")}
    error_file = f"/attempt_{generation}/0/error.json"
    return subprocess.Popen([WORKER, folder], env={**os.environ, **names, "TORCHELASTIC_ERROR_FILE": error_file})


def _events(folder):
    path = folder / "events"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_worker_sees_another_generation(tmp_path):
    """The worker sees it while one of its processes is alive, and not after."""
    first = _start_worker(tmp_path, 0)
    wait_until(lambda: len(_events(tmp_path)) == 1, "the first one runs")
    second = _start_worker(tmp_path, 1)
    wait_until(lambda: len(_events(tmp_path)) == 2, "the second one runs")
    assert [event["overlaps"] for event in _events(tmp_path)] == [0, first.pid]
    first.kill()
    first.wait()
    second.kill()
    second.wait()
    third = _start_worker(tmp_path, 2)
    wait_until(lambda: len(_events(tmp_path)) == 3, "the third one runs")
    third.kill()
    third.wait()
    assert _events(tmp_path)[2]["overlaps"] == 0
