"""Workers that fail: the whole job ends or restarts together, with one root cause."""

import random
import signal

import pytest

from job import one_root_cause, print_time


@pytest.mark.parametrize("node", range(3))
def test_killed_worker_ends_the_job_everywhere(make_job, node):
    job = make_job(3, worker_flags=["--with-child"])
    launchers = job.start_all()
    job.wait_for_generation(0)
    rank = node * 2 + 1
    since = job.kill_worker(0, rank)
    assert job.wait() == [128 + signal.SIGKILL] * 3, job.story()
    print_time("killed worker to the end of all launchers", since)
    assert one_root_cause(launchers) == (f"rank {rank}", "signal 9 (SIGKILL)")
    job.check(failures=0)


@pytest.mark.parametrize("node", range(3))
def test_failed_worker_ends_the_job_everywhere(make_job, node):
    """All launchers exit with its exit code, and every report has its last lines."""
    job = make_job(3)
    launchers = job.start_all()
    job.wait_for_generation(0)
    rank = node * 2
    since = job.order_failure(0, rank, 30 + node)
    assert job.wait() == [30 + node] * 3, job.story()
    print_time("failed worker to the end of all launchers", since)
    assert one_root_cause(launchers) == (f"rank {rank}", f"exit code {30 + node}")
    assert all(f"rank {rank} fails as ordered" in launcher.text for launcher in launchers)
    job.check(failures=0)


@pytest.mark.parametrize("node", range(3))
def test_killed_worker_restarts_the_job_everywhere(make_job, node):
    job = make_job(3, max_restarts=1, worker_flags=["--with-child"])
    job.start_all()
    job.wait_for_generation(0)
    since = job.kill_worker(0, node * 2)
    job.wait_for_generation(1)
    print_time("killed worker to the last rank of the next generation", since)
    job.succeed()
    job.check(failures=1)


def test_workers_that_ignore_term_are_killed(make_job):
    """The next generation starts when all of them have ended."""
    job = make_job(3, max_restarts=1, flags=["--shutdown-timeout", "0.5"], worker_flags=["--ignore-term"])
    job.start_all()
    job.wait_for_generation(0)
    since = job.kill_worker(0, 3)
    job.wait_for_generation(1)
    print_time("killed worker to the next generation, with 0.5 s of grace", since)
    job.succeed()
    job.check(failures=1)


def test_failures_at_once_cost_one_restart(make_job):
    """Workers of all nodes are killed at once, which counts as one failure."""
    job = make_job(3, max_restarts=2)
    job.start_all()
    job.wait_for_generation(0)
    job.kill_worker(0, 0, 3, 5)
    job.wait_for_generation(1)
    job.succeed()
    job.check(failures=1)


@pytest.mark.parametrize("seed", range(3))
def test_budget_is_never_exceeded(make_job, seed):
    """A seeded random choice kills one worker after the other, on any node."""
    choice = random.Random(seed)
    budget = choice.randint(2, 5)
    job = make_job(3, max_restarts=budget)
    launchers = job.start_all()
    for generation in range(budget + 1):
        job.wait_for_generation(generation)
        rank = choice.randrange(6)
        job.kill_worker(generation, rank)
    assert job.wait() == [128 + signal.SIGKILL] * 3, job.story()
    assert one_root_cause(launchers) == (f"rank {rank}", "signal 9 (SIGKILL)")
    assert {e["generation"] for e in job.events()} == set(range(budget + 1))
    job.check(failures=budget)


def test_preempted_worker_ends_the_job_without_a_restart(make_job):
    job = make_job(3, max_restarts=3)
    job.start_all()
    job.wait_for_generation(0)
    job.order_failure(0, 4, 75)
    assert job.wait() == [75] * 3, job.story()
    job.check(failures=0)


def _hanging_job(make_job, *flags, **options):
    job = make_job(3, flags=["--stall-timeout", "1", *flags], worker_flags=["--hang-in-rank", "3"], **options)
    return job, job.start_all()


def test_hang_report_names_the_rank_of_another_node(make_job):
    """Each launcher reports which rank all others wait for, and nothing else happens."""
    job, launchers = _hanging_job(make_job)
    job.wait_for_generation(0)
    for launcher in launchers:
        launcher.wait_to_say("no rank has moved for 1 s")
        launcher.wait_to_say("ranks 0-2,4-5 wait in all_reduce (their collective number 2; step 7, running)")
        launcher.wait_to_say("rank 3 on node1 has not arrived: its last collective was number 1, all_reduce; step 7")
    job.succeed()
    assert all(launcher.text.count("no rank has moved") == 1 for launcher in launchers)
    job.check(failures=0)


def test_hang_restarts_the_job_by_the_rank_that_does_not_come(make_job):
    """The launcher of that rank kills it, which counts as one failure."""
    job, launchers = _hanging_job(make_job, "--on-stall", "restart", max_restarts=1)
    job.wait_for_generation(1)
    assert job.wait() == [128 + signal.SIGKILL] * 3, job.story()
    assert one_root_cause(launchers) == ("rank 3", "signal 9 (SIGKILL)")
    job.check(failures=1)


def test_hang_ends_the_job_everywhere(make_job):
    job, _ = _hanging_job(make_job, "--on-stall", "abort", max_restarts=3)
    job.wait_for_generation(0)
    assert job.wait() == [128 + signal.SIGABRT] * 3, job.story()
    job.check(failures=0)


@pytest.mark.parametrize("how", ["success", "failure", "restart", "killed_launcher", "stopped_launcher"])
def test_daemons_of_workers_end_with_them(make_job, how):
    """Daemons have their own session, and their parent has ended; job.check() finds them."""
    job = make_job(2, max_restarts=int(how == "restart"), worker_flags=["--with-daemon"])
    launchers = job.start_all()
    events = job.wait_for_generation(0)
    if how == "failure":
        job.kill_worker(0, 1)
    elif how == "restart":
        before = set(job.left_over())
        job.kill_worker(0, 1)
        job.wait_for_generation(1)
        assert set(job.left_over()) & before == {*(launcher.pid for launcher in launchers), *job.keepers()}, job.story()
    elif how == "killed_launcher":
        launchers[1].kill()
    elif how == "stopped_launcher":
        launchers[1].kill(signal.SIGSTOP)
        job.wait_until_gone([e for e in events if e["node"] == 1])
        launchers[0].wait()
        launchers[1].kill(signal.SIGCONT)
    job.finish()
    job.wait()
    job.check()
