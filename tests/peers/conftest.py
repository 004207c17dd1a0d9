"""A comparison that does not run counts as failed."""

import os
import pathlib
import signal
import subprocess
import sys

import pytest

from optim_program import OptimTrace


def pytest_configure(config):
    # Shells and nohup start background processes with these signals ignored, and launchers react differently
    # to that. So both launchers start with the defaults, as in the foreground.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    avoid_undescribed_amx()


def avoid_undescribed_amx():
    """Keeps PyTorch alive on virtual machines that have AMX and hide its description (src/torch_private/onednn.h). Both
    sides of a comparison then multiply 16-bit matrices with the same instructions."""
    product = "import torch; ones = torch.ones(64, 128, dtype=torch.bfloat16); torch.nn.functional.linear(ones, ones)"
    if " amx_tile" in pathlib.Path("/proc/cpuinfo").read_text():
        if subprocess.run([sys.executable, "-c", product], check=False).returncode == -signal.SIGILL:
            os.environ["ONEDNN_MAX_CPU_ISA"] = "AVX512_CORE_FP16"


@pytest.fixture
def bin_dir():
    """The folder with the programs of the build."""
    return pathlib.Path(os.environ["LOCKSTEP_BIN_DIR"])


@pytest.fixture(scope="session")
def optim_trace():
    program = OptimTrace(pathlib.Path(os.environ["LOCKSTEP_BIN_DIR"]) / "test" / "optim_trace")
    yield program
    program.close()


def _not_run(config):
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    stats = reporter.stats if reporter else {}  # a worker of xdist has none; its reports reach the main process
    return [report for outcome in ("skipped", "xfailed", "xpassed") for report in stats.get(outcome, [])]


def pytest_sessionfinish(session, exitstatus):
    if exitstatus == 0 and _not_run(session.config):
        session.exitstatus = 1


def pytest_terminal_summary(terminalreporter, config):
    for report in _not_run(config):
        terminalreporter.write_line(f"FAILED {report.nodeid}: not run ({report.outcome})", red=True)
