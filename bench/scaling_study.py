#!/usr/bin/env python3
"""Repeats a study of `lockstep bench scaling` and writes its result: bench/scaling_study.py [--repeat N] [--hardware TEXT]
[--remark TEXT].

The study trains Fashion-MNIST on one and two ranks with one and two CPUs each, as far as this machine has CPUs. Speeds are medians
over the repetitions, with the lowest and the highest. Writes bench/results/scaling.json, the curves in
docs/pictures, and docs/results.md. Takes some minutes on two quiet cores. `lockstep` is that of build/bin, or of the folder
LOCKSTEP_BIN_DIR.
"""

import argparse
import datetime
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bench"))
sys.dont_write_bytecode = True
import render_results  # noqa: E402

STUDY = ["bench", "scaling", "--ranks", "1,2", "--cpus-per-rank", "1,2", "--"]
TRAINING = ["lockstep", "train", "fashion-mnist", "--max-samples", "2000", "--epochs", "5", "--compute-setup", "cpu"]
# The charts of the study that do not depend on the speed of a single repetition.
PICTURES = {
    "train-loss-epochs": "Training loss against epochs",
    "train-accuracy-epochs": "Training accuracy against epochs",
    "val-loss-epochs": "Validation loss against epochs",
    "val-accuracy-epochs": "Validation accuracy against epochs",
}
METRICS = {"train_loss": "training loss", "val_loss": "validation loss", "val_accuracy": "validation accuracy"}
HEAD = ["ranks", "CPUs per rank", "samples/s", "lowest to highest", "speed-up", "efficiency", "s", "by duration", *METRICS.values()]


def rows_of(repetitions):
    """The rows of the result table, from the `rows` of the scaling.json of each repetition."""
    rows = []
    for same in zip(*repetitions, strict=True):
        place = {(row["nodes"], row["ranks"], row["cpus_per_rank"]) for row in same}
        if len(place) > 1:
            raise ValueError(f"the repetitions have different rows: {place}")
        if any("failure" in row for row in same):
            continue  # too few CPUs

        def median(key):
            return statistics.median(row[key] for row in same)

        speeds = [row["samples_per_s"] for row in same]
        metrics = [{f"{row['final_metrics'][name]:.4f}" for row in same} for name in METRICS]
        rows.append([same[0]["ranks"], same[0]["cpus_per_rank"], f"{median('samples_per_s'):,.0f}",
                     f"{min(speeds):,.0f} to {max(speeds):,.0f}", f"{median('speed_up'):.2f}",
                     f"{100 * median('efficiency'):.0f} %", f"{median('seconds'):.1f}",
                     f"{median('speed_up_by_duration'):.2f}, {100 * median('efficiency_by_duration'):.0f} %",
                     *(" or ".join(sorted(values)) for values in metrics)])
    return rows


def cpu_name():
    found = re.search(r"^model name\s*: (.*)$", pathlib.Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return found[1] if found else "an unknown CPU"


def result_of(repetitions, hardware, libtorch, remark=""):
    return {
        "title": "Ranks and CPUs on one machine",
        "date": datetime.date.today().isoformat(),
        "hardware": hardware,
        "software": f"LibTorch {libtorch}",
        "command": " ".join(["lockstep", *STUDY, *TRAINING]),
        "columns": [{"name": name} for name in HEAD],
        "rows": rows_of(repetitions),
        "pictures": [{"file": f"pictures/scaling-{name}.svg", "title": title} for name, title in PICTURES.items()],
        "note": f"Medians of {len(repetitions)} repetitions, which `bench/scaling_study.py` runs. Each rank has a batch of 64, "
                "so two ranks make half as many steps an epoch: the loss falls more slowly over epochs. Efficiency is the speed "
                "of a rank divided by that of the rank that trains alone with as many CPUs. \"By duration\" is the ratio of "
                "whole runs, start and validation included, to the first row, and that ratio divided by the ranks."
                + (f" {remark}" if remark else ""),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=3, choices=range(1, 100), metavar="N")
    parser.add_argument("--hardware", default=f"{len(os.sched_getaffinity(0))} cores of {cpu_name()}")
    parser.add_argument("--remark", default="", help="a sentence below the table, such as what else this machine did")
    options = parser.parse_args()
    folder = pathlib.Path(os.environ.get("LOCKSTEP_BIN_DIR", ROOT / "build" / "bin")).resolve()
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    version = subprocess.run([folder / "lockstep", "--version"], check=True, text=True, capture_output=True).stdout
    with tempfile.TemporaryDirectory() as scratch:
        studies = [pathlib.Path(scratch) / str(i) for i in range(options.repeat)]
        for study in studies:
            command = [folder / "lockstep", *STUDY[:-1], "--output", study, "--", *TRAINING]
            subprocess.run(command, check=True, env=environment)
        repetitions = [json.loads((study / "scaling.json").read_text())["rows"] for study in studies]
        result = result_of(repetitions, options.hardware, re.search(r"LibTorch +(\S+)", version)[1], options.remark)
        pictures = render_results.PAGE.parent / "pictures"
        pictures.mkdir(exist_ok=True)
        for name in PICTURES:
            shutil.copyfile(studies[0] / f"{name}.svg", pictures / f"scaling-{name}.svg")
        (render_results.RESULTS / "scaling.json").write_text(json.dumps(result, indent=2) + "\n")
    render_results.PAGE.write_text(render_results.render())


if __name__ == "__main__":
    main()
