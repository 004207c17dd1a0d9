"""A comparison that does not run is a comparison that failed."""

import os
import pathlib
import signal

import pytest

from optim_program import OptimTrace


def pytest_configure(config):
    # A shell starts what it puts into the background, and nohup all it starts, with these
    # ignored, and launchers differ in what they make of that: both begin like in the foreground.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture
def bin_dir():
    """Where the build put its programs."""
    return pathlib.Path(os.environ["LOCKSTEP_BIN_DIR"])


@pytest.fixture(scope="session")
def optim_trace():
    program = OptimTrace(pathlib.Path(os.environ["LOCKSTEP_BIN_DIR"]) / "test" / "optim_trace")
    yield program
    program.close()


def _not_run(config):
    stats = config.pluginmanager.get_plugin("terminalreporter").stats
    return [report for outcome in ("skipped", "xfailed", "xpassed") for report in stats.get(outcome, [])]


def pytest_sessionfinish(session, exitstatus):
    if exitstatus == 0 and _not_run(session.config):
        session.exitstatus = 1


def pytest_terminal_summary(terminalreporter, config):
    for report in _not_run(config):
        terminalreporter.write_line(f"FAILED {report.nodeid}: not run ({report.outcome})", red=True)
