"""`lockstep run` compared with real torchrun: the same worker script with the same command lines.
run_cases.py has the cases, and run_differences.py the intended differences."""

import concurrent.futures
import os
import pathlib
import re
import subprocess

import pytest
from launchers import PYTHON, Command, PerWorker, Run, Torchrun, differing, version_of
from run_cases import CASES
from run_differences import ALL, BY_ID

DOC = pathlib.Path(__file__).parents[2] / "docs" / "torchrun.md"
# Cases in which the forked torchrun must equal the executable.
EXECUTABLE = [case for case in CASES if case.id in ("nnodes-text", "tee-role", "restarts-used-up", "signal-TERM")]


class Results:
    """Runs all cases of this session, a few at a time, from the first request on."""

    def __init__(self, launchers, folder, wanted):
        self._pool = concurrent.futures.ThreadPoolExecutor(3 * (os.cpu_count() or 1))
        self._runs = {}
        for case, name in wanted:
            run = Run(launchers[name], case, folder / case.id / name.replace(" ", "-"))
            self._runs[case.id, name] = self._pool.submit(run.run)

    def facts(self, case, name):
        return self._runs[case.id, name].result()

    def close(self):
        self._pool.shutdown(cancel_futures=True)


@pytest.fixture(scope="module")
def torchrun():
    server = Torchrun()
    yield server
    server.close()


@pytest.fixture(scope="module")
def results(torchrun, tmp_path_factory, request):
    binary = pathlib.Path(os.environ["LOCKSTEP_BIN_DIR"]) / "lockstep"
    launchers = {"torchrun": torchrun, "lockstep run": Command("lockstep run", [binary, "run"]),
                 "executable": Command("torchrun", [PYTHON, "-m", "torch.distributed.run"])}
    wanted = {}
    for item in request.session.items:
        if hasattr(item.function, "runs"):
            wanted |= {(case.id, name): (case, name) for case, name in item.function.runs(item.callspec.params["case"])}
    all_results = Results(launchers, tmp_path_factory.mktemp("run"), wanted.values())
    yield all_results
    all_results.close()


def needs(*names):
    """Marks which launchers a test compares."""
    def mark(function):
        function.runs = lambda case: [(case, name) for name in names]
        return function
    return mark


def shown(names, theirs, ours):
    return "\n".join(f"  {name}\n    torchrun:     {theirs.get(name)}\n    lockstep run: {ours.get(name)}"
                     for name in sorted(names))


def is_everywhere(value, fact):
    """Whether the fact has this value, for every worker and launcher."""
    if isinstance(fact, PerWorker):
        return set(fact.values()) == {value}
    return fact == value or (isinstance(fact, list) and fact != [] and all(one == value for one in fact))


def differences_of(case, version):
    """The ids of the differences that are expected with this version of torchrun."""
    for newer, differences in case.before:
        if version < version_of(newer):
            return differences
    return case.differences


@needs("torchrun", "lockstep run")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_same_as_torchrun(case, results, torchrun):
    theirs, ours = results.facts(case, "torchrun"), results.facts(case, "lockstep run")
    seen = differing(theirs, ours)
    listed = [BY_ID[id] for id in differences_of(case, torchrun.version)]
    unlisted = seen - frozenset().union(*(one.facts for one in listed))
    assert not unlisted, (f"not the same, and no intended difference explains it:\n{shown(unlisted, theirs, ours)}\n"
                          f"lockstep run says:\n{ours['text on stderr']}\ntorchrun says:\n{theirs['text on stderr']}")
    idle = [one.id for one in listed if not one.facts & seen]
    assert not idle, f"listed as intended differences, but not seen: {idle}"
    for name, value in {**case.ours, **{name: value for one in listed for name, value in one.ours.items()}}.items():
        assert is_everywhere(value, ours[name]), f"lockstep run's {name} should be {value}: {ours[name]}"


@needs("torchrun", "lockstep run")
@pytest.mark.parametrize("case", [one for one in CASES if "worker-status" in one.differences], ids=lambda case: case.id)
def test_status_is_that_of_the_root_cause(case, results):
    _, code, _ = results.facts(case, "torchrun")["root cause"]
    assert results.facts(case, "lockstep run")["status"] == [code if code > 0 else 128 - code]


@needs("torchrun", "executable")
@pytest.mark.parametrize("case", EXECUTABLE, ids=lambda case: case.id)
def test_forked_torchrun_is_the_executable(case, results):
    forked, executed = results.facts(case, "torchrun"), results.facts(case, "executable")
    seen = differing(forked, executed)
    assert not seen, shown(seen, forked, executed)


def test_every_flag_of_torchrun_has_a_case(torchrun):
    given = {argument.partition("=")[0] for case in CASES for arguments in case.nodes for argument in arguments}
    flags = {flag for entry in torchrun.flags for flag in entry["flags"]}
    assert flags - given == set()


def test_every_variable_of_torchrun_has_a_case(torchrun):
    set_somewhere = {name for case in CASES for name in case.environment}
    variables = {f"PET_{entry['name'].upper()}" for entry in torchrun.flags if entry["variable"]}
    assert variables - set_somewhere == set()


def test_table_is_sound():
    assert len(CASES) >= 45
    assert len({case.id for case in CASES}) == len(CASES), "an id twice"
    used = {id for case in CASES for ids in (case.differences, *(old for _, old in case.before)) for id in ids}
    assert used == set(BY_ID), "a difference that no case shows, or one that is not listed"
    assert all(one.reason.endswith(".") and one.reason.count(".") == 1 for one in ALL), "a reason is one sentence"


@needs("lockstep run")
@pytest.mark.parametrize("case", [case for case in CASES if case.id == "omp-unset"], ids=lambda case: case.id)
def test_omp_threads_are_the_cores_of_the_mask(case, results):
    threads = {int(value) for value in results.facts(case, "lockstep run")["OMP_NUM_THREADS"].values()}
    most = max(1, len(os.sched_getaffinity(0)) // 2)
    assert len(threads) == 1 and 1 <= threads.pop() <= most  # fewer if a cgroup limits the CPUs


def section(title):
    found = re.search(rf"^## {title}$(.*?)(?=^## |\Z)", DOC.read_text(), re.MULTILINE | re.DOTALL)
    assert found, f"no section '{title}' in {DOC.name}"
    return found[1]


def test_doc_lists_the_differences():
    rows = [tuple(cell.strip() for cell in line.strip("|").split(" | "))
            for line in section("Intended differences").splitlines() if line.startswith("| ")]
    assert rows[0] == ("id", "torchrun", "`lockstep run`", "why")
    assert rows[1:] == [(f"`{one.id}`", one.torchrun, one.lockstep, one.reason) for one in ALL]


def test_doc_lists_every_flag(torchrun, bin_dir):
    text = section("Flags")
    told = subprocess.run([str(bin_dir / "lockstep"), "run", "--help"], text=True, capture_output=True, check=True)
    ours = [line.split()[0].split(",")[-1] for line in told.stdout.splitlines() if re.match(r"  -", line)]
    assert [flag for flag in ours if flag != "--help" and f"`{flag.partition('{')[0]}" not in text] == []
    assert [entry["flags"][-1] for entry in torchrun.flags
            if not any(f"`{flag}" in text for flag in entry["flags"])] == []
