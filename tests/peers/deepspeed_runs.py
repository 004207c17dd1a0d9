"""Runs cases with DeepSpeed and with Lockstep. Each rank runs many cases in one process, because importing DeepSpeed takes seconds."""

import json
import os
import pathlib
import subprocess
import sys

PROGRAMS = pathlib.Path(__file__).parent / "programs"
BIN = pathlib.Path(os.environ["LOCKSTEP_BIN_DIR"])


def write_cases(folder, cases, **common):
    files = []
    for name, case in cases.items():
        (folder / name).mkdir(parents=True)
        files.append(folder / name / "case.json")
        files[-1].write_text(json.dumps({"seed": 7, **case, **common}))
    return files


def run_deepspeed(folder, cases, *, ranks):
    """Runs the cases with DeepSpeed, and returns the folder of the results."""
    files = write_cases(folder / "deepspeed", cases, ranks=ranks)
    environment = dict(os.environ, OMP_NUM_THREADS="1", WORLD_SIZE=str(ranks), LOCAL_SIZE=str(ranks),
                       STORE_FILE=str(folder / "store"))
    logs = [open(folder / f"deepspeed.{rank}.log", "w+") for rank in range(ranks)]
    processes = [subprocess.Popen([sys.executable, PROGRAMS / "deepspeed_training.py", *files], stdout=log,
                                  stderr=subprocess.STDOUT,
                                  env=dict(environment, RANK=str(rank), LOCAL_RANK=str(rank)))
                 for rank, log in enumerate(logs)]
    try:
        statuses = [process.wait(timeout=600) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert statuses == [0] * ranks, (folder / "deepspeed.0.log").read_text()[-5000:]
    return folder / "deepspeed"


def run_ours(folder, cases, *, ranks):
    """Runs the cases with Lockstep, and returns the folder of the results."""
    files = write_cases(folder / "ours", cases, ranks=ranks)
    subprocess.run([BIN / "test" / "model_training", *files], check=True, timeout=600,
                   env=dict(os.environ, OMP_NUM_THREADS="1"))
    return folder / "ours"


def import_checkpoint(saved, to, *options):
    """Runs `lockstep ckpt import`, and returns its output."""
    return subprocess.run([BIN / "lockstep", "ckpt", "import", saved, "--to", to, *options], check=True, text=True,
                          capture_output=True, timeout=120).stdout


def losses_of(folder, ranks):
    return [json.loads((folder / f"losses.{rank}.json").read_text()) for rank in range(ranks)]
