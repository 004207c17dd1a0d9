"""Faults of processes and of the network, on nodes that are network namespaces."""

import os
import pathlib
import uuid

import pytest

from job import Job
from network import Network

NUM_NODES = 4


def pytest_addoption(parser):
    parser.addoption("--schedules", type=int, default=4, help="random schedules of faults: 0, 1, ... N - 1")


def pytest_generate_tests(metafunc):
    if "schedule" in metafunc.fixturenames:
        metafunc.parametrize("schedule", range(metafunc.config.getoption("--schedules")))


@pytest.fixture
def network():
    """Four nodes, connected by a switch that can delay, drop and cut packets."""
    assert os.geteuid() == 0, "tests/nodes makes network namespaces and needs root: sudo script/test --nodes"
    network = Network(f"lockstep-{uuid.uuid4().hex[:8]}", NUM_NODES)
    yield network
    network.close()


@pytest.fixture
def make_job(network, tmp_path):
    """Creates the job of a test, and ends its processes after the test in any case."""
    jobs = []

    def make(nnodes, **options):
        folder = tmp_path / f"job{len(jobs)}"
        folder.mkdir()
        binary = pathlib.Path(os.environ["LOCKSTEP_BIN_DIR"]) / "lockstep"
        jobs.append(Job(network, folder, binary, uuid.uuid4().hex, nnodes, port=29500 + len(jobs), **options))
        return jobs[-1]

    yield make
    for job in jobs:
        job.close()


def pytest_terminal_summary(terminalreporter):
    """Prints the measured times, also of tests that passed."""
    for report in terminalreporter.stats.get("passed", []):
        for line in report.capstdout.splitlines():
            if line.startswith("measured: "):
                terminalreporter.write_line(f"{report.nodeid.partition('::')[2]}: {line.removeprefix('measured: ')}")


def _not_run(config):
    stats = config.pluginmanager.get_plugin("terminalreporter").stats
    return [report for outcome in ("skipped", "xfailed", "xpassed") for report in stats.get(outcome, [])]


def pytest_sessionfinish(session, exitstatus):
    """A test that does not run counts as failed."""
    if exitstatus == 0 and _not_run(session.config):
        session.exitstatus = 1
