"""The rendezvous: launchers that join at different times, and launchers that are refused."""

import subprocess
import sys

import pytest

from job import fault_lasts
from network import address

WRONG_USE, NOT_TOGETHER = 2, 76


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)], ids=["host_first", "host_last", "host_between"])
def test_one_after_the_other(make_job, order):
    job = make_job(3)
    for node in order[:-1]:
        launcher = job.start(node)
        if 0 in order[:order.index(node) + 1]:
            launcher.wait_in_meeting()
        else:
            fault_lasts(0.2)
    assert not job.events()
    job.start(order[-1])
    job.wait_for_generation(0)
    job.succeed()
    job.check(failures=0)


def test_host_a_second_late(make_job):
    """In a job with MIN:MAX nodes, node 0 is the node of the endpoint, not the first one to join."""
    job = make_job("3:3")
    job.start_all([1, 2])
    fault_lasts(1)
    job.start(0)
    job.wait_for_generation(0)
    job.succeed()
    job.check(failures=0)


def test_one_node_a_second_late(make_job):
    job = make_job(3)
    job.start_all([0, 1])
    fault_lasts(1)
    assert not job.events()
    job.start(2)
    job.wait_for_generation(0)
    job.succeed()
    job.check(failures=0)


def test_another_idea_of_the_job_is_refused(make_job):
    """The error names both nodes and both values; the job continues without the refused launcher."""
    job = make_job(2, max_restarts=3)
    host = job.start(0).wait_in_meeting()
    stranger = job.start(1, "--max-restarts", "1")
    assert stranger.wait() == NOT_TOGETHER, job.story()
    assert "--max-restarts is 1 on node1 and 3 on node0" in stranger.text
    other = job.start(1)
    job.wait_for_generation(0)
    job.succeed([host, other])
    job.check(failures=0)


@pytest.mark.parametrize("nnodes", ["4", "4:4"], ids=["static", "open"])
def test_all_at_once(make_job, nnodes):
    job = make_job(nnodes)
    job.start_all([3, 1, 2, 0])
    job.wait_for_generation(0)
    job.succeed()
    job.check(failures=0)


def test_duplicate_node_rank_is_refused(make_job):
    """The second launcher ends; the first one, or a running job, is not disturbed."""
    job = make_job(3)
    first = [job.start(0).wait_in_meeting(), job.start(1).wait_in_meeting()]
    second = job.start(2, rank=1)
    assert second.wait() == NOT_TOGETHER, job.story()
    assert "node rank 1 is taken by node1" in second.text
    first.append(job.start(2))
    job.wait_for_generation(0)
    third = job.start(3, rank=1)
    assert third.wait() == NOT_TOGETHER, job.story()
    job.succeed(first)
    assert job.generations() == [0]
    job.check(failures=0)


def test_second_host_on_the_same_node_is_refused(make_job):
    job = make_job(2)
    first = job.start(0).wait_in_meeting()
    second = job.start(0)
    assert second.wait() == WRONG_USE, job.story()
    other = job.start(1)
    job.wait_for_generation(0)
    job.succeed([first, other])
    job.check(failures=0)


def test_node_rank_beyond_the_last_is_refused(make_job):
    job = make_job(2)
    stranger = job.start(2, rank=2)
    assert stranger.wait() == WRONG_USE, job.story()
    launchers = job.start_all()
    job.wait_for_generation(0)
    job.succeed(launchers)
    job.check(failures=0)


def test_node_beyond_the_most_waits_as_a_spare(make_job):
    """The spare takes the place of a lost node, and ends with the job."""
    job = make_job("3:3", max_restarts=1)
    launchers = job.start_all()
    events = job.wait_for_generation(0)
    spare = job.start(3).wait_in_meeting()
    spare.wait_to_say("the job runs on all of its 3 nodes: this launcher is a spare")
    assert job.generations() == [0]
    launchers[1].kill()
    job.wait_for_generation(1)
    assert {e["host"] for e in job.generation(1)} == {"node0", "node2", "node3"}, job.story()
    assert {e["host"] for e in events} == {"node0", "node1", "node2"}
    job.succeed([launchers[0], launchers[2], spare])
    job.check(failures=1)


def test_spare_that_is_not_needed_ends_well(make_job):
    job = make_job("2:2")
    job.start_all()
    job.wait_for_generation(0)
    job.start(2).wait_in_meeting()
    job.succeed()
    assert job.generations() == [0]
    job.check(failures=0)


@pytest.mark.parametrize("when", ["waiting", "running"])
@pytest.mark.parametrize("what", ["token", "no_token", "run_id"])
def test_stranger_is_refused(make_job, what, when):
    """A launcher of another job, or without the secret, has no effect on the job."""
    secret = {"LOCKSTEP_JOB_TOKEN": "a secret of this test"}
    flags = ["--rdzv-id", "mine"]
    job = make_job("2:3")
    launchers = [job.start(0, *flags, "--rdzv-conf", "last_call_timeout=0.1", environment=secret).wait_in_meeting()]
    if when == "running":
        launchers.append(job.start(1, *flags, environment=secret))
        job.wait_for_generation(0, num_nodes=2)
    stranger = {
        "token": lambda: job.start(2, *flags, environment={"LOCKSTEP_JOB_TOKEN": "another"}),
        "no_token": lambda: job.start(2, *flags),
        "run_id": lambda: job.start(2, "--rdzv-id", "yours", environment=secret),
    }[what]()
    assert stranger.wait() == NOT_TOGETHER, job.story()
    reasons = {"run_id": 'the job here is "mine"', "token": "the job token is wrong", "no_token": "finds no secret in"}
    assert reasons[what] in stranger.text, stranger.text
    if when == "waiting":
        launchers.append(job.start(1, *flags, environment=secret))
        job.wait_for_generation(0, num_nodes=2)
    job.succeed(launchers)
    assert job.generations() == [0]
    assert not any("a secret of this test" in launcher.text for launcher in job.launchers)
    job.check(failures=0)


# Half-open connections, bytes that are not messages, and connections that are reset.
NOISE = """
import os, random, socket, struct, sys
choice = random.Random(1)
silent = []
for i in range(200):
    s = socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=10)
    kind = i % 4
    try:
        if kind == 0:
            silent.append(s)
            continue
        if kind == 1:
            s.sendall(choice.randbytes(choice.randint(1, 5000)))
        if kind == 2:
            s.sendall(struct.pack(">I", choice.randint(0, 2**32 - 1)) + b"{}")
        if kind == 3:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    except OSError:
        pass
    s.close()
print("done", flush=True)
sys.stdin.read()
"""


def test_noise_on_the_port_costs_nobody_anything(make_job, network):
    """The noise continues while the job waits, starts, restarts and ends."""
    job = make_job(3, max_restarts=1)
    launchers = [job.start(0).wait_in_meeting()]
    command = [*network.inside(3), sys.executable, "-c", NOISE, address(0), str(job.port)]
    noise = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(2)]
    try:
        launchers += [job.start(1), job.start(2)]
        job.wait_for_generation(0)
        for process in noise:
            assert process.stdout.readline() == b"done\n"
        job.kill_worker(0, 2)
        job.wait_for_generation(1)
        job.succeed(launchers)
    finally:
        for process in noise:
            process.kill()
            process.communicate()
    job.check(failures=1)


@pytest.mark.parametrize("nnodes", ["3", "3:4"], ids=["static", "open"])
def test_too_few_come(make_job, nnodes):
    """All launchers end together and list the nodes that joined."""
    job = make_job(nnodes, flags=["--rdzv-conf", "join_timeout=1.5"])
    launchers = [job.start(0).wait_in_meeting(), job.start(1).wait_in_meeting()]
    assert job.wait() == [NOT_TOGETHER] * 2, job.story()
    for launcher in launchers:
        assert "2 of at least 3 nodes came" in launcher.text and "node1" in launcher.text, launcher.text
    assert not job.events()
    job.check()


def test_host_never_comes(make_job):
    job = make_job(3, flags=["--rdzv-conf", "join_timeout=1"])
    job.start_all([1, 2])
    assert job.wait() == [NOT_TOGETHER] * 2, job.story()
    for launcher in job.launchers:
        assert f"{address(0)}:{job.port}" in launcher.text, launcher.text
    job.check()


def test_late_for_a_job_that_has_ended(make_job):
    """No process listens any more: the launcher gives up after its timeout."""
    job = make_job("1:2", flags=["--rdzv-conf", "last_call_timeout=0.1,join_timeout=2"])
    host = job.start(0)
    job.wait_for_generation(0, num_nodes=1)
    job.succeed([host])
    late = job.start(1)
    assert late.wait() == NOT_TOGETHER, job.story()
    job.check(failures=0)
