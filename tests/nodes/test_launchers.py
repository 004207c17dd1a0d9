"""Launchers that are killed, stopped or asked to leave, in every phase of a job."""

import signal
import time

import pytest

from job import fault_lasts, one_root_cause, print_time, wait_until
from tracing import ForkTrap

LOST, NOT_TOGETHER = 69, 76
TERMINATED = 128 + signal.SIGTERM


def _of_node(events, node):
    return [e for e in events if e["host"] == f"node{node}"]


# --- while launchers wait for others


def test_killed_while_waiting_is_replaced(make_job):
    """If a node dies before the start, the next node takes its place."""
    job = make_job(3)
    host = job.start(0).wait_in_meeting()
    victim = job.start(1).wait_in_meeting()
    victim.kill()
    assert victim.wait() == -signal.SIGKILL
    host.wait_to_lose(1)
    others = [job.start(1), job.start(2)]
    job.wait_for_generation(0)
    job.succeed([host, *others])
    job.check(failures=0)


def test_host_killed_while_waiting_ends_the_others(make_job):
    job = make_job(3)
    host = job.start(0).wait_in_meeting()
    other = job.start(1).wait_in_meeting()
    since = host.kill()
    assert other.wait() == NOT_TOGETHER, job.story()
    print_time("killed host to the end of a launcher that waits", since)
    assert not job.events()
    job.check()


def test_stopped_while_waiting_loses_its_place(make_job):
    """When the launcher continues, it finds out that it is lost, and ends."""
    job = make_job(3)
    host = job.start(0).wait_in_meeting()
    victim = job.start(1).wait_in_meeting()
    since = victim.kill(signal.SIGSTOP)
    host.wait_to_lose(1)
    print_time("stopped launcher to being given up", since)
    others = [job.start(1), job.start(2)]
    job.wait_for_generation(0)
    victim.kill(signal.SIGCONT)
    assert victim.wait() == NOT_TOGETHER, job.story()
    job.succeed([host, *others])
    job.check(failures=0)


@pytest.mark.parametrize("leaver", [0, 1])
def test_terminated_while_waiting_ends_a_job_of_fixed_size(make_job, leaver):
    job = make_job(3)
    launchers = [job.start(0).wait_in_meeting(), job.start(1).wait_in_meeting()]
    since = launchers[leaver].kill(signal.SIGTERM)
    assert job.wait() == [TERMINATED] * 2, job.story()
    print_time("SIGTERM to the end of all launchers that wait", since)
    job.check()


def test_terminated_while_waiting_leaves_an_open_job(make_job):
    job = make_job("2:3")
    host = job.start(0, "--rdzv-conf", "last_call_timeout=60").wait_in_meeting()
    leaver = job.start(1).wait_in_meeting()
    leaver.kill(signal.SIGTERM)
    assert leaver.wait() == TERMINATED, job.story()
    others = [job.start(2), job.start(3)]
    job.wait_for_generation(0)
    job.succeed([host, *others])
    job.check(failures=0)


# --- while workers run


def test_workers_that_a_signal_ends_are_no_success(make_job, network):
    """The workers of node 0 have succeeded; node 1 gets the signal before it gets the job's message to stop."""
    job = make_job(2)
    launchers = job.start_all()
    events = job.wait_for_generation(0)
    for event in _of_node(events, 0):
        job.order_failure(0, event["rank"], 0)
    job.wait_until_gone(_of_node(events, 0))
    network.set_links(delay=0.2)
    launchers[1].kill(signal.SIGTERM)
    assert job.wait() == [TERMINATED] * 2, job.story()
    job.check(failures=0)


@pytest.mark.parametrize("node", [1, 2])
def test_killed_launcher_ends_a_job_of_fixed_size(make_job, node):
    """The workers of the launcher, and the processes that they started, end with it."""
    job = make_job(3, max_restarts=3, worker_flags=["--with-child"])
    launchers = job.start_all()
    events = job.wait_for_generation(0)
    since = launchers[node].kill()
    job.wait_until_gone(_of_node(events, node))
    print_time("killed launcher to the end of its workers", since)
    others = [launcher for launcher in launchers if launcher.node != node]
    assert job.wait(others) == [LOST] * 2, job.story()
    print_time("killed launcher to the end of all launchers", since)
    assert one_root_cause(others)[0] == f"node {node}"
    job.check(failures=0)


def test_killed_host_ends_the_job(make_job):
    job = make_job(3, max_restarts=3, worker_flags=["--with-child"])
    launchers = job.start_all()
    events = job.wait_for_generation(0)
    since = launchers[0].kill()
    job.wait_until_gone(_of_node(events, 0))
    print_time("killed host to the end of its workers", since)
    assert job.wait(launchers[1:]) == [LOST] * 2, job.story()
    print_time("killed host to the end of all launchers", since)
    job.check(failures=0)


def test_killed_launcher_restarts_an_open_job_without_it(make_job):
    job = make_job("2:3", max_restarts=1)
    launchers = job.start_all()
    job.wait_for_generation(0)
    since = launchers[2].kill()
    job.wait_for_generation(1, num_nodes=2)
    print_time("killed launcher to the last rank of the next generation", since)
    job.succeed(launchers[:2])
    job.check(failures=1)


@pytest.mark.parametrize("max_restarts", [0, 1])
def test_killed_launcher_ends_an_open_job_below_its_least(make_job, max_restarts):
    """Without a spare node or without a restart, the job ends."""
    job = make_job("3:3" if max_restarts else "2:3", max_restarts=max_restarts)
    launchers = job.start_all()
    events = job.wait_for_generation(0)
    launchers[1].kill()
    others = [launchers[0], launchers[2]]
    assert job.wait(others) == [LOST] * 2, job.story()
    # In a job with MIN:MAX nodes, nodes are numbered as they join.
    assert one_root_cause(others)[0] == f"node {_of_node(events, 1)[0]['node']}"
    job.check(failures=0)


def test_stopped_launcher_ends_a_job_of_fixed_size(make_job):
    """Its workers are killed although the launcher is stopped, and it ends when it continues."""
    job = make_job(3, max_restarts=3, flags=["--shutdown-timeout", "0.5"],
                   worker_flags=["--with-child", "--ignore-term"])
    launchers = job.start_all()
    events = job.wait_for_generation(0)
    since = launchers[1].kill(signal.SIGSTOP)
    job.wait_until_gone(_of_node(events, 1))
    print_time("stopped launcher to the end of its workers", since)
    launchers[0].wait_to_lose(1)
    print_time("stopped launcher to being given up", since)
    assert job.wait([launchers[0], launchers[2]]) == [LOST] * 2, job.story()
    print_time("stopped launcher to the end of the others, with 0.5 s of grace", since)
    assert one_root_cause([launchers[0], launchers[2]])[0] == "node 1"
    since = launchers[1].kill(signal.SIGCONT)
    assert launchers[1].wait() == LOST, job.story()
    print_time("SIGCONT to the end of the launcher that was stopped", since)
    job.check(failures=0)


@pytest.mark.parametrize("ignore_term", [False, True])
def test_stopped_launcher_restarts_an_open_job_without_it(make_job, ignore_term):
    """None of its workers is alive when the next generation starts; check() verifies this."""
    job = make_job("2:3", max_restarts=1, flags=["--shutdown-timeout", "0.2"],
                   worker_flags=["--ignore-term"] if ignore_term else [])
    launchers = job.start_all()
    job.wait_for_generation(0)
    since = launchers[2].kill(signal.SIGSTOP)
    job.wait_for_generation(1, num_nodes=2)
    print_time("stopped launcher to the last rank of the next generation", since)
    launchers[2].kill(signal.SIGCONT)
    assert launchers[2].wait() == LOST, job.story()
    job.succeed(launchers[:2])
    job.check(failures=1)


def _caught_at_its_first_worker(make_job):
    """Returns a job whose launcher of node 1 is stopped right after it forked its first worker."""
    job = make_job("2:3", max_restarts=1, flags=["--rdzv-conf", "last_call_timeout=60"])
    host = job.start(0).wait_in_meeting()
    victim = job.start(1).wait_in_meeting()
    trap = ForkTrap(victim.pid)
    other = job.start(2)
    trap.stop_after_fork()
    return job, victim, [host, other]


def test_stopped_while_it_starts_its_workers(make_job):
    """A worker that was just started is killed like any other when the lease ends."""
    job, victim, others = _caught_at_its_first_worker(make_job)
    job.wait_for_generation(1, num_nodes=2)
    victim.kill(signal.SIGCONT)
    assert victim.wait() == LOST, job.story()
    job.succeed(others)
    job.check(failures=1)


def test_killed_while_it_starts_its_workers(make_job):
    job, victim, others = _caught_at_its_first_worker(make_job)
    victim.kill()
    job.wait_for_generation(1, num_nodes=2)
    job.succeed(others)
    job.check(failures=1)


def test_stopped_host_ends_the_job(make_job):
    """The others end, and so does the host when it continues, because too few nodes are left."""
    job = make_job(3, max_restarts=3)
    launchers = job.start_all()
    events = job.wait_for_generation(0)
    since = launchers[0].kill(signal.SIGSTOP)
    job.wait_until_gone(_of_node(events, 0))
    print_time("stopped host to the end of its workers", since)
    assert job.wait(launchers[1:]) == [LOST] * 2, job.story()
    print_time("stopped host to the end of the other launchers", since)
    launchers[0].kill(signal.SIGCONT)
    assert launchers[0].wait() == LOST, job.story()
    assert "this launcher did not run for" in launchers[0].text, job.story()
    assert "failed first" not in launchers[0].text, "nobody else did anything wrong"
    job.check(failures=0)


def test_frozen_node_ends_when_it_wakes_up(make_job):
    """Like a suspended machine: no process on it can end anything before it continues."""
    job = make_job("2:3", max_restarts=1)
    launchers = job.start_all()
    frozen = _of_node(job.wait_for_generation(0), 2)
    wake = launchers[2].freeze_node()
    job.wait_for_generation(1, num_nodes=2)
    wake()
    since = time.monotonic()
    job.wait_until_gone(frozen)
    print_time("a node wakes up to the end of its workers", since)
    assert launchers[2].wait() == LOST, job.story()
    assert "this launcher did not run for" in launchers[2].text, job.story()
    job.succeed(launchers[:2])
    job.check(failures=1, frozen=[e["pid"] for e in frozen])


def test_briefly_stopped_launchers_change_nothing(make_job):
    """The stop of 0.3 s is shorter than the lease."""
    job = make_job(3)
    launchers = job.start_all()
    job.wait_for_generation(0)
    for launcher in launchers:
        launcher.kill(signal.SIGSTOP)
        fault_lasts(0.3)
        launcher.kill(signal.SIGCONT)
    job.succeed()
    assert job.generations() == [0]
    job.check(failures=0)


def test_killed_keeper_changes_nothing(make_job):
    """The keeper is only a safety net; the job does not depend on it."""
    job = make_job(2, max_restarts=1)
    launchers = job.start_all()
    job.wait_for_generation(0)
    for launcher in launchers:
        launcher.kill_keeper()
    job.kill_worker(0, 3)
    job.wait_for_generation(1)
    job.succeed()
    job.check(failures=1)


@pytest.mark.parametrize("leaver", range(3))
def test_terminated_launcher_ends_a_job_of_fixed_size(make_job, leaver):
    job = make_job(3, max_restarts=3)
    launchers = job.start_all()
    job.wait_for_generation(0)
    since = launchers[leaver].kill(signal.SIGTERM)
    assert job.wait() == [TERMINATED] * 3, job.story()
    print_time("SIGTERM to the end of all launchers", since)
    assert job.generations() == [0]
    job.check(failures=0)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "terminated"])
def test_node_that_has_succeeded_is_not_needed(make_job, how):
    """Its launcher may end; the job succeeds when the others do."""
    job, launchers = _node_1_has_succeeded(make_job, max_restarts=0)
    launchers[1].kill(how)
    assert launchers[1].wait() == (TERMINATED if how == signal.SIGTERM else -signal.SIGKILL)
    launchers[0].wait_to_lose(1)
    job.succeed([launchers[0], launchers[2]])
    job.check(failures=0)


def test_node_that_has_succeeded_starts_again_with_the_others(make_job):
    job, _ = _node_1_has_succeeded(make_job, max_restarts=1)
    job.kill_worker(0, 0)
    job.wait_for_generation(1)
    job.succeed()
    job.check(failures=1)


def test_node_that_has_succeeded_is_missed_by_a_restart(make_job):
    """A job of fixed size cannot restart without this node."""
    job, launchers = _node_1_has_succeeded(make_job, max_restarts=1)
    launchers[1].kill()
    launchers[0].wait_to_lose(1)
    job.kill_worker(0, 0)
    assert job.wait([launchers[0], launchers[2]]) == [LOST] * 2, job.story()
    assert one_root_cause([launchers[0], launchers[2]]) == ("rank 0", "signal 9 (SIGKILL)")
    job.check(failures=0)


def _node_1_has_succeeded(make_job, max_restarts):
    job = make_job(3, max_restarts=max_restarts)
    launchers = job.start_all()
    events = job.wait_for_generation(0)
    link = job.network.switch.links[1, 0]
    for rank in (2, 3):
        job.order_failure(0, rank, 0)
    job.wait_until_gone(_of_node(events, 1))
    before = link.segments
    wait_until(lambda: link.segments >= before + 2, "the host has been told")
    return job, launchers


# --- while workers are being stopped


def _stopping(make_job, nnodes, grace):
    """Returns a job whose workers got SIGTERM and do not end."""
    job = make_job(nnodes, max_restarts=2, flags=["--shutdown-timeout", str(grace)], worker_flags=["--ignore-term"])
    launchers = job.start_all()
    job.wait_for_generation(0)
    job.kill_worker(0, 0)
    for launcher in launchers:
        launcher.wait_to_say("stopping the workers")
    assert job.generations() == [0], job.story()
    return job, launchers


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_lost_while_stopping_is_the_same_failure(make_job, how):
    """The job restarts with the others, which counts as one restart."""
    job, launchers = _stopping(make_job, "2:3", 3)
    launchers[1].kill(how)
    job.wait_for_generation(1, num_nodes=2)
    if how == signal.SIGSTOP:
        launchers[1].kill(signal.SIGCONT)
        assert launchers[1].wait() == LOST, job.story()
    job.succeed([launchers[0], launchers[2]])
    job.check(failures=1)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_host_lost_while_stopping_ends_the_job(make_job, how):
    """The others do not wait for the end of their grace time, because the job has ended."""
    job, launchers = _stopping(make_job, 3, 60)
    since = launchers[0].kill(how)
    assert job.wait(launchers[1:]) == [LOST] * 2, job.story()
    print_time("lost host to the end of the others", since)
    if how == signal.SIGSTOP:
        launchers[0].kill(signal.SIGCONT)
        # Its workers were killed in the meantime, so it ends at once.
        assert launchers[0].wait() in (LOST, 128 + signal.SIGKILL), job.story()
    job.check(failures=0)


def test_terminated_twice_while_stopping_kills_at_once(make_job):
    job, launchers = _stopping(make_job, 3, 60)
    for launcher in launchers:
        launcher.kill(signal.SIGTERM)
        launcher.wait_to_take(signal.SIGTERM)
    since = time.monotonic()
    for launcher in launchers:
        launcher.kill(signal.SIGTERM)
    assert job.wait() == [TERMINATED] * 3, job.story()
    print_time("second SIGTERM to the end of all launchers", since)
    job.check(failures=0)
