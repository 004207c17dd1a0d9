#!/usr/bin/env python3
"""The benchmark driver: script/bench [--suite NAME]... [--json FILE].

A suite is a module bench/suites/NAME.py with a function rows() that returns a list of Row. Each row measures Lockstep and
a peer alternately in the same run, and compares the ratio of the medians with a floor. Uses the standard library only.
"""

import argparse
import dataclasses
import importlib.util
import json
import os
import pathlib
import platform
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

ROOT = pathlib.Path(__file__).resolve().parent.parent
SUITES = ROOT / "bench" / "suites"
BIN = ROOT / "build" / "bin"
# LOCKSTEP_PEER_PYTHON names another Python with PyTorch: on a GPU machine, the one with CUDA.
PEER_PYTHON = pathlib.Path(os.environ.get("LOCKSTEP_PEER_PYTHON", ROOT / ".deps" / "peers" / "bin" / "python"))


def gpu_is_there():
    return shutil.which("nvidia-smi") is not None and subprocess.run(["nvidia-smi", "-L"]).returncode == 0


class BenchError(Exception):
    """A measurement failed; the text says which one and why."""


@dataclasses.dataclass(frozen=True)
class Command:
    """A program to measure.

    Its last line on standard output is {"value": x, "unit": "..."}; other keys are ignored. With wall_clock the value is
    the run time in seconds, and the output is ignored.
    """

    argv: Sequence[str | os.PathLike]
    env: dict[str, str] = dataclasses.field(default_factory=dict)
    wall_clock: bool = False
    timeout_s: float = 300

    def __call__(self, unit: str) -> float:
        argv = [str(a) for a in self.argv]
        start = time.perf_counter()
        try:
            done = subprocess.run(
                argv, env={**os.environ, **self.env}, cwd=ROOT, timeout=self.timeout_s, text=True,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        except FileNotFoundError as error:
            raise BenchError(f"not there: {error.filename} (script/build, script/setup --bench)") from error
        except subprocess.TimeoutExpired as error:
            raise BenchError(f"no result within {self.timeout_s:g} s: {' '.join(argv)}") from error
        seconds = time.perf_counter() - start
        if done.returncode != 0:
            raise BenchError(f"exit status {done.returncode}: {' '.join(argv)}\n{done.stderr[-2000:]}")
        return seconds if self.wall_clock else self._value(done.stdout, unit)

    def _value(self, stdout: str, unit: str) -> float:
        lines = stdout.strip().splitlines()
        try:
            result = json.loads(lines[-1])
            value, printed_unit = float(result["value"]), result["unit"]
        except (IndexError, KeyError, TypeError, ValueError) as error:
            last = lines[-1] if lines else ""
            raise BenchError(f'no {{"value": x, "unit": ...}} in the last line: {last!r}') from error
        if printed_unit != unit:
            raise BenchError(f"unit {printed_unit!r} where the row says {unit!r}: {self.argv[0]}")
        return value


# A row takes a Command, or any function of the unit that returns one measurement.
Measure = Callable[[str], float]


@dataclasses.dataclass(frozen=True)
class Row:
    """One comparison. The ratio is how many times better Lockstep is than the peer; the row passes if it is at least `floor`.

    Without a peer, the value is compared with `reference`, a constant in the same unit, for absolute floors.
    """

    name: str
    unit: str
    ours: Measure
    peer: Measure | None = None
    reference: float | None = None
    higher_is_better: bool = False
    floor: float = 1.0
    repeat: int = 5
    # Runs of each side that do not count; they fill file caches and raise CPU clocks.
    warm_up: int = 1

    def __post_init__(self):
        if (self.peer is None) == (self.reference is None):
            raise ValueError(f"{self.name}: give a peer or a reference, and not both")
        if self.repeat < 1:
            raise ValueError(f"{self.name}: repeat is {self.repeat}")


@dataclasses.dataclass(frozen=True)
class Sample:
    """Repeated measurements of one side, with median, minimum and maximum."""

    values: list[float]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    def as_json(self) -> dict:
        return {"median": self.median, "min": min(self.values), "max": max(self.values), "values": self.values}

    def __str__(self) -> str:
        return f"{self.median:.4g} [{min(self.values):.3g}..{max(self.values):.3g}]"


@dataclasses.dataclass(frozen=True)
class Result:
    row: Row
    ours: Sample | None = None
    peer: Sample | None = None
    error: str = ""

    @property
    def ratio(self) -> float | None:
        if self.ours is None or self.peer is None:
            return None
        better, worse = self.ours.median, self.peer.median
        if not self.row.higher_is_better:
            better, worse = worse, better
        if worse == 0:
            # Two zeros are equal: no extra memory on both sides.
            return 1.0 if better == 0 else float("inf")
        return better / worse

    @property
    def passed(self) -> bool:
        return self.ratio is not None and self.ratio >= self.row.floor

    def as_json(self) -> dict:
        ratio = self.ratio
        return {
            "name": self.row.name,
            "unit": self.row.unit,
            "better": "higher" if self.row.higher_is_better else "lower",
            "ours": self.ours.as_json() if self.ours else None,
            "peer": self.peer.as_json() if self.peer else None,
            "ratio": ratio if ratio != float("inf") else "inf",
            "floor": self.row.floor,
            "passed": self.passed,
            "error": self.error,
        }


def measure(row: Row) -> Result:
    """Measures ours, peer, ours, peer, ..., so that a machine that becomes slower affects both."""
    peer = row.peer if row.peer is not None else (lambda unit: row.reference)
    ours_values, peer_values = [], []
    try:
        for i in range(row.warm_up + row.repeat):
            pair = row.ours(row.unit), peer(row.unit)
            if i >= row.warm_up:
                ours_values.append(pair[0])
                peer_values.append(pair[1])
    except BenchError as error:
        return Result(row, error=str(error))
    return Result(row, Sample(ours_values), Sample(peer_values))


HEADER = ["", "what", "unit", "ours median [min..max]", "peer median [min..max]", "ratio", "floor"]


def cells(result: Result) -> list[str]:
    row = result.row
    ratio = "" if result.ratio is None else f"{result.ratio:.2f}x"
    return ["pass" if result.passed else "FAIL", row.name, row.unit, str(result.ours or "-"),
            str(result.peer or "-"), ratio, f"{row.floor:g}x"]


def table(results: Sequence[Result]) -> str:
    lines = [HEADER] + [cells(r) for r in results]
    widths = [max(len(line[i]) for line in lines) for i in range(len(HEADER))]
    text = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in lines]
    return "\n".join(text + [f"{r.row.name}: {r.error}" for r in results if r.error])


def suite_names() -> list[str]:
    return sorted(p.stem for p in SUITES.glob("*.py"))


def load_suite(name: str) -> list[Row]:
    path = SUITES / f"{name}.py"
    if not path.is_file():
        raise BenchError(f"no suite {name!r}; there are: {', '.join(suite_names())}")
    # Suites import this file as `run`, also if it is __main__.
    sys.modules.setdefault("run", sys.modules[__name__])
    spec = importlib.util.spec_from_file_location(f"suite_{name}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    rows = module.rows()
    duplicates = {r.name for r in rows if [q.name for q in rows].count(r.name) > 1}
    # A suite for GPUs has no rows on a machine without one.
    if duplicates or not (rows or getattr(module, "MAY_BE_EMPTY", False)):
        raise BenchError(f"suite {name!r}: no rows, or a name twice: {sorted(duplicates)}")
    return rows


def machine() -> dict:
    cpu = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")),
               platform.machine())
    return {"cpu": cpu, "cores": len(os.sched_getaffinity(0)), "kernel": platform.release()}


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="script/bench", description=__doc__.splitlines()[0])
    parser.add_argument("--suite", action="append", metavar="NAME", help="suite to run; default: all except selftest")
    parser.add_argument("--json", metavar="FILE", help="also write the results to this file")
    parser.add_argument("--row", metavar="TEXT", default="", help="only rows whose name contains this")
    parser.add_argument("--repeat", type=int, metavar="N", help="number of runs, instead of the number of each row")
    parser.add_argument("--list", action="store_true", help="print suites and rows, without measuring")
    options = parser.parse_args(argv)
    report = []
    for name in options.suite or [n for n in suite_names() if n != "selftest"]:
        rows = [r for r in load_suite(name) if options.row in r.name]
        if options.repeat:
            rows = [dataclasses.replace(r, repeat=options.repeat) for r in rows]
        if options.list:
            print("\n".join(f"{name}: {r.name} ({r.unit}), floor {r.floor:g}x" for r in rows))
            continue
        results = []
        for row in rows:
            print(f"{name}: {row.name} ...", file=sys.stderr, flush=True)
            results.append(measure(row))
        print(f"suite {name}\n{table(results)}\n", flush=True)
        report.append({"suite": name, "rows": [r.as_json() for r in results]})
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps({"machine": machine(), "suites": report}, indent=1) + "\n")
    rows_passed = [row["passed"] for suite in report for row in suite["rows"]]
    if not options.list:
        print(f"{sum(rows_passed)} of {len(rows_passed)} rows at or above their floor")
    return 0 if all(rows_passed) and (rows_passed or options.list) else 1


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except BenchError as error:
        sys.exit(f"bench: {error}")
