"""Jobs of MIN:MAX nodes that grow and shrink."""

import random
import signal

from job import print_time, wait_until

LOST, NOT_TOGETHER = 69, 76
TERMINATED = 128 + signal.SIGTERM
SOON = ["--rdzv-conf", "last_call_timeout=0.3"]


def _worlds(job):
    return [job.generation(number)[0]["world"] for number in job.generations()]


def test_grows_one_by_one(make_job):
    """Every node that joins restarts the job, which does not count as a failure."""
    job = make_job("1:3", flags=SOON)
    job.start(0)
    job.wait_for_generation(0, num_nodes=1)
    since = job.start(1).started
    job.wait_for_generation(1, num_nodes=2)
    print_time("start of a launcher to the last rank with it, with a last call of 0.3 s", since)
    since = job.start(2).started
    job.wait_for_generation(2, num_nodes=3)
    print_time("start of the last launcher to the last rank with it", since)
    job.succeed()
    assert _worlds(job) == [2, 4, 6]
    job.check(failures=0)


def test_grows_by_all_who_came_before_the_last_call(make_job):
    job = make_job("1:4", flags=["--rdzv-conf", "last_call_timeout=1.5"])
    job.start(0)
    job.wait_for_generation(0, num_nodes=1)
    job.start_all([1, 2])
    job.wait_for_generation(1, num_nodes=3)
    job.succeed()
    assert _worlds(job) == [2, 6]
    job.check(failures=0)


def test_grows_to_its_most_without_waiting(make_job):
    """The last call is a minute, but the job does not wait for it when all nodes have joined."""
    job = make_job("2:3", flags=["--rdzv-conf", "last_call_timeout=60"])
    job.start_all()
    job.wait_for_generation(0)
    job.succeed()
    job.check(failures=0)


def test_grows_while_workers_ignore_term(make_job):
    """The old generation has ended before the new one starts."""
    job = make_job("1:2", flags=[*SOON, "--shutdown-timeout", "0.5"], worker_flags=["--ignore-term", "--with-child"])
    job.start(0)
    job.wait_for_generation(0, num_nodes=1)
    job.start(1)
    job.wait_for_generation(1, num_nodes=2)
    job.succeed()
    job.check(failures=0)


def test_shrinks_when_a_node_leaves(make_job):
    """Nodes leave by SIGTERM down to MIN, which counts as no restart; one more ends the job on all nodes."""
    job = make_job("2:4", flags=SOON)
    launchers = job.start_all()
    job.wait_for_generation(0)
    for generation, leaver in ((1, 3), (2, 1)):
        since = launchers[leaver].kill(signal.SIGTERM)
        job.wait_for_generation(generation, num_nodes=4 - generation)
        print_time("SIGTERM to the last rank without the node", since)
        assert launchers[leaver].wait() == TERMINATED, job.story()
    launchers[2].kill(signal.SIGTERM)
    assert job.wait([launchers[0], launchers[2]]) == [TERMINATED] * 2, job.story()
    assert _worlds(job) == [8, 6, 4]
    job.check(failures=0)


def test_host_that_leaves_ends_the_job(make_job):
    job = make_job("1:3", flags=SOON)
    launchers = job.start_all()
    wait_until(lambda: len(job.generation(job.generations()[-1])) == 6 if job.events() else False, job.story)
    launchers[0].kill(signal.SIGTERM)
    assert job.wait() == [TERMINATED] * 3, job.story()
    job.check(failures=0)


def test_shrinks_when_nodes_are_killed(make_job):
    """Nodes are killed down to MIN, one restart each; one more ends the job on all nodes."""
    job = make_job("2:4", max_restarts=5, flags=SOON)
    launchers = job.start_all()
    job.wait_for_generation(0)
    for generation, victim in ((1, 3), (2, 1)):
        launchers[victim].kill()
        job.wait_for_generation(generation, num_nodes=4 - generation)
    launchers[2].kill()
    assert launchers[0].wait() == LOST, job.story()
    assert _worlds(job) == [8, 6, 4]
    job.check(failures=2)


def test_shrinks_and_grows_again(make_job):
    job = make_job("2:3", max_restarts=1, flags=SOON)
    launchers = job.start_all()
    job.wait_for_generation(0)
    launchers[1].kill()
    job.wait_for_generation(1, num_nodes=2)
    again = job.start(1)
    job.wait_for_generation(2)
    job.succeed([launchers[0], launchers[2], again])
    assert _worlds(job) == [6, 4, 6]
    job.check(failures=1)


def test_two_nodes_lost_at_once_cost_one_restart(make_job):
    job = make_job("1:3", max_restarts=1, flags=["--rdzv-conf", "last_call_timeout=60"])
    launchers = job.start_all()
    job.wait_for_generation(0)
    launchers[1].kill()
    launchers[2].kill()
    job.wait_for_generation(1, num_nodes=1)
    job.succeed(launchers[:1])
    job.check(failures=1)


def test_random_faults(make_job, network, schedule):
    """Seeded schedules, --schedules of them: workers and launchers are killed and stopped, cables pulled, nodes come and leave.

    How the job ends is up to the schedule; the rules of check() hold for all of them, and
    the launchers that were there to the end agree on the status.
    """
    choice = random.Random(schedule)
    job = make_job("1:4", max_restarts=3, worker_flags=["--ignore-term"] if schedule % 2 else [],
                   flags=["--rdzv-conf", "last_call_timeout=0.3,join_timeout=10", "--shutdown-timeout", "0.3"])
    host, *_ = job.start_all()
    at = dict(enumerate(job.launchers))
    faulty = set()
    print(f"schedule {schedule}:", end="")
    for _ in range(6):
        wait_until(lambda: host.ended or _complete(job), job.story)
        if host.ended:
            break
        node = choice.randint(1, 3)
        fault = choice.choice(["worker", "worker", "kill", "stop", "cut", "leave"])
        if at[node].ended:
            fault = "come"
        print(f" {fault} {node};", end="")
        if fault == "come":
            at[node] = job.start(node)
            wait_until(lambda: host.ended or at[node].ended or at[node].is_in_meeting(), job.story)
        elif fault == "worker":
            last = job.generations()[-1]
            job.kill_worker(last, *(e["rank"] for e in job.generation(last) if e["host"] == f"node{node}"))
        else:
            faulty.add(at[node])
            _inflict(network, host, at[node], fault)
    print()
    job.finish()
    assert host.wait() in (0, LOST, 128 + signal.SIGKILL), job.story()
    job.wait()
    # A launcher that joins after the host has ended finds no job.
    statuses = {launcher.wait() for launcher in at.values() if launcher not in faulty} - {NOT_TOGETHER}
    assert len(statuses) == 1, job.story()
    job.check()


def _complete(job):
    events = job.events()
    last = [e for e in events if e["generation"] == max(e["generation"] for e in events)]
    return last and len(last) == last[0]["world"]


def _inflict(network, host, launcher, fault):
    """Causes a fault that the node does not survive, and restores the node for the next launcher."""
    signals = {"kill": signal.SIGKILL, "leave": signal.SIGTERM, "stop": signal.SIGSTOP}
    if fault == "cut":
        network.set_links(node=launcher.node, cut=True)
    else:
        launcher.process.send_signal(signals[fault])
    if fault == "stop":
        host.wait_to_lose(launcher.node)
        launcher.process.send_signal(signal.SIGCONT)
    launcher.wait()
    host.wait_to_lose(launcher.node)
    network.set_links(node=launcher.node, cut=False)
