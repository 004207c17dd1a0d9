"""The trace of a training as TensorBoard's profiler plugin (torch-tb-profiler) loads it."""

import json
import subprocess

import pytest
from torch_tb_profiler import consts, io
from torch_tb_profiler.profiler.loader import RunLoader


@pytest.fixture
def traced(bin_dir, tmp_path):
    """The folder of a run of two ranks with the trace of steps 3 and 4."""
    run = tmp_path / "run"
    subprocess.run([bin_dir / "sine", "--nprocs", "2", "--compute_setup", "cpu", "--max_iter", "2", "--trace-steps", "3:4",
                    "--run-dir", run], check=True, capture_output=True, timeout=120)
    return run


def load(folder, tmp_path):
    """The profiles of the ranks, and that of all of them."""
    with io.Cache(str(tmp_path)) as caches:
        run = RunLoader(folder.name, str(folder), caches).load()
    return {worker: profile for (worker, _), profile in sorted(run.profiles.items())}


def test_tensorboard_shows_steps_operators_and_collectives(traced, tmp_path):
    profiles = load(traced, tmp_path)
    assert list(profiles) == ["All", "rank0", "rank1"]
    for worker in ("rank0", "rank1"):
        profile = profiles[worker]
        assert {consts.OVERALL_VIEW, consts.OP_VIEW, consts.TRACE_VIEW} <= set(profile.views)
        steps = profile.overview["steps"]
        names = [column.get("name") for column in steps["columns"]]
        rows = [dict(zip(names, row)) for row in steps["rows"]]
        assert [row["Step"] for row in rows] == ["3", "4"]
        for part in ("Communication", "DataLoader", "CPU Exec"):
            assert sum(row[part] for row in rows) > 0, part
        assert "aten::addmm" in {row["name"] for row in profile.operation_table_by_name["data"]}


def test_tensorboard_compares_the_collectives_of_the_ranks(traced, tmp_path):
    table = load(traced, tmp_path)["All"].comm_ops["data"]
    assert set(table) == {"rank0", "rank1"}
    for rank in table.values():
        assert [row[0] for row in rank["rows"]] == ["gloo:all_reduce"]


def test_the_file_has_what_pytorch_s_profiler_writes(traced):
    for rank in (0, 1):
        trace = json.loads((traced / f"rank{rank}.pt.trace.json").read_text())
        assert trace["schemaVersion"] == 1
        assert trace["distributedInfo"] == {"backend": "shm", "rank": rank, "world_size": 2}
        assert {event["ph"] for event in trace["traceEvents"]} == {"M", "X"}
