"""Cables that are pulled, and links that delay, lose or reorder packets."""

import signal
import time

import pytest

from job import fault_lasts, one_root_cause, print_time, wait_until

LOST, NOT_TOGETHER = 69, 76


def _pull(network, node, how):
    """Takes the link of the node down, or drops its packets in the switch, in one or both directions."""
    if how == "down":
        network.unplug(node)
    for (source, target), link in network.switch.links.items():
        link.cut |= (how in ("cut", "mute") and source == node) or (how in ("cut", "deaf") and target == node)
    return time.monotonic()


def _mend(network, node):
    network.plug(node)
    network.set_links(node=node, cut=False)


def _wait_for_talk(network, node):
    """Waits until a few heartbeats have been sent and answered."""
    links = [link for pair, link in network.switch.links.items() if node in pair and 0 in pair] if node else \
        [link for pair, link in network.switch.links.items() if 0 in pair and max(pair) < 3]
    before = [link.segments for link in links]
    wait_until(lambda: all(link.segments >= count + 3 for link, count in zip(links, before)), "heartbeats are answered")


@pytest.mark.parametrize("how", ["down", "cut", "mute", "deaf"])
@pytest.mark.parametrize("node", [0, 1])
def test_cable_pulled_for_good_ends_a_job_of_fixed_size(make_job, network, node, how):
    """The job ends on both sides of the cut."""
    job = make_job(3, max_restarts=3, worker_flags=["--with-child"])
    launchers = job.start_all()
    events = job.wait_for_generation(0)
    since = _pull(network, node, how)
    job.wait_until_gone(events)
    print_time("pulled cable to the end of all workers", since)
    assert job.wait() == [LOST] * 3, job.story()
    print_time("pulled cable to the end of all launchers", since)
    if node == 1:
        assert one_root_cause([launchers[0], launchers[2]])[0] == "node 1"
    job.check(failures=0)


@pytest.mark.parametrize("how", ["down", "cut", "mute", "deaf"])
def test_cable_pulled_from_an_open_job(make_job, network, how):
    """The others continue when no worker runs on the lost node any more; after a reconnect the node may join again."""
    job = make_job("2:3", max_restarts=1)
    launchers = job.start_all()
    job.wait_for_generation(0)
    since = _pull(network, 2, how)
    job.wait_for_generation(1, num_nodes=2)
    print_time("pulled cable to the last rank of the next generation", since)
    assert launchers[2].wait() == LOST, job.story()
    _mend(network, 2)
    again = job.start(2)
    job.wait_for_generation(2, num_nodes=3)
    job.succeed([*launchers[:2], again])
    job.check(failures=1)


def test_host_alone_goes_on_where_one_node_is_enough(make_job, network):
    job = make_job("1:3", max_restarts=1)
    launchers = job.start_all()
    job.wait_for_generation(0)
    _pull(network, 0, "cut")
    assert job.wait(launchers[1:]) == [LOST] * 2, job.story()
    job.wait_for_generation(1, num_nodes=1)
    job.succeed(launchers[:1])
    job.check(failures=1)


@pytest.mark.parametrize("how", ["down", "cut"])
@pytest.mark.parametrize("node", [0, 1])
def test_cable_pulled_for_a_moment_changes_nothing(make_job, network, node, how):
    job = make_job(3)
    job.start_all()
    job.wait_for_generation(0)
    _pull(network, node, how)
    fault_lasts(0.3)
    _mend(network, node)
    _wait_for_talk(network, node)
    job.succeed()
    assert job.generations() == [0]
    job.check(failures=0)


def test_cable_pulled_for_five_seconds_loses_the_node(make_job, network):
    """The node is lost and stays lost when the cable is back."""
    job = make_job("2:3", max_restarts=1)
    launchers = job.start_all()
    job.wait_for_generation(0)
    _pull(network, 1, "cut")
    fault_lasts(5)
    _mend(network, 1)
    assert launchers[1].wait() == LOST, job.story()
    job.wait_for_generation(1, num_nodes=2)
    job.succeed([launchers[0], launchers[2]])
    job.check(failures=1)


def test_cable_pulled_while_waiting(make_job, network):
    """Another node can take the place of the lost one."""
    job = make_job(3)
    host = job.start(0).wait_in_meeting()
    lost = job.start(1).wait_in_meeting()
    since = _pull(network, 1, "cut")
    assert lost.wait() == NOT_TOGETHER, job.story()
    host.wait_to_lose(1)
    print_time("pulled cable to being given up, while waiting", since)
    _mend(network, 1)
    others = [job.start(1), job.start(2)]
    job.wait_for_generation(0)
    job.succeed([host, *others])
    job.check(failures=0)


def test_cable_pulled_while_stopping(make_job, network):
    job = make_job("2:3", max_restarts=1, flags=["--shutdown-timeout", "3"], worker_flags=["--ignore-term"])
    launchers = job.start_all()
    job.wait_for_generation(0)
    job.kill_worker(0, 1)
    for launcher in launchers:
        launcher.wait_to_say("stopping the workers")
    _pull(network, 1, "cut")
    assert launchers[1].wait() == LOST, job.story()
    job.wait_for_generation(1, num_nodes=2)
    job.succeed([launchers[0], launchers[2]])
    job.check(failures=1)


def test_cable_plugged_in_after_the_start(make_job, network):
    """Launchers that cannot reach their host keep trying."""
    job = make_job(3)
    _pull(network, 1, "down")
    _pull(network, 2, "cut")
    launchers = job.start_all()
    launchers[0].wait_in_meeting()
    fault_lasts(1)
    _mend(network, 1)
    _mend(network, 2)
    job.wait_for_generation(0)
    job.succeed()
    job.check(failures=0)


BAD_LINKS = {
    "slow": {"delay": 0.05},
    "very_slow": {"delay": 0.2},
    "every_20th_lost": {"drop_every": 20},
    "every_5th_lost": {"drop_every": 5},
    "reordered": {"reorder": 0.3},
    "throttled": {"rate": 4000},
    "all_of_it": {"delay": 0.02, "drop_every": 30, "reorder": 0.2, "rate": 20000},
}


@pytest.mark.parametrize("name", BAD_LINKS)
def test_job_on_bad_links(make_job, network, name):
    """The job starts, restarts after a failure, and succeeds."""
    network.set_links(**BAD_LINKS[name])
    job = make_job(3, max_restarts=1)
    since = time.monotonic()
    job.start_all()
    job.wait_for_generation(0)
    print_time("start to the last rank", since)
    _wait_for_talk(network, None)
    since = job.kill_worker(0, 5)
    job.wait_for_generation(1)
    print_time("killed worker to the last rank of the next generation", since)
    job.succeed()
    job.check(failures=1)


def test_job_on_bad_links_ends_with_its_failure(make_job, network):
    """Every launcher reports the root cause."""
    network.set_links(delay=0.05, reorder=0.3)
    job = make_job(3)
    launchers = job.start_all()
    job.wait_for_generation(0)
    job.kill_worker(0, 3)
    assert job.wait() == [128 + signal.SIGKILL] * 3, job.story()
    assert one_root_cause(launchers) == ("rank 3", "signal 9 (SIGKILL)")
    job.check(failures=0)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("loss", [0.05, 0.2])
def test_packets_lost_at_random(make_job, network, loss, seed):
    """No node is lost: the job starts, keeps running, restarts after a failure, and succeeds."""
    network.switch.random.seed(seed)
    network.set_links(loss=loss)
    job = make_job(3, max_restarts=1)
    job.start_all()
    job.wait_for_generation(0)
    fault_lasts(10)
    job.kill_worker(0, 5)
    job.wait_for_generation(1)
    job.succeed()
    print(f"measured: packets lost {network.switch.dropped}")
    job.check(failures=1)
