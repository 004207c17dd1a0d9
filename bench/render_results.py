#!/usr/bin/env python3
"""Writes docs/results.md from bench/results/*.json. With --check, fails if the page differs from what it would write.

A file in bench/results has the results of one command on one machine, and may name pictures in docs. published.json has the numbers
of the web pages that the recipes reproduce.
"""

import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"
PAGE = ROOT / "docs" / "results.md"

HEAD = """# Results

Written by `bench/render_results.py` from the files in `bench/results`: do not edit.
"""


def number(value, digits):
    return "" if value is None else f"{value:,.{digits}f}"


def table(head, rows):
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    return "\n".join(lines + [f"| {' | '.join(row)} |" for row in rows])


def published_table(results):
    rows = []
    for run in json.loads((RESULTS / "published.json").read_text())["runs"]:
        ours = results.get(run.get("ours"), {})
        mine = ours.get("result", {})
        where = ours.get("hardware", f"not run: {run.get('not_run')}")
        rows.append([run["page"], run["what"], run["hardware"], number(run.get("seconds"), 1),
                     number(run.get("images_per_s"), 0), number(run.get("accuracy"), 4), where,
                     number(mine.get("seconds"), 1), number(mine.get("images_per_s"), 0),
                     number(mine.get("accuracy"), 4)])
    return table(["published by", "training", "hardware", "s", "img/s", "accuracy", "Lockstep on", "s", "img/s", "accuracy"], rows)


def speed_up_table():
    rows = [[row["what"], row["from"], row["to"], f"{row['speed_up']:.2f}",
             f"{100 * row.get('efficiency', row['speed_up'] / row['gpus']):.1f} %", row["note"]]
            for row in json.loads((RESULTS / "published.json").read_text())["speed_ups"]]
    return table(["published", "from", "to", "speed-up", "efficiency", "what it compares"], rows)


def run_section(result):
    lines = [f"### {result['title']}", "", f"`{result['command']}`", "",
             f"{result['date']}, {result['hardware']}, {result['software']}."]
    if "rows" in result:
        lines += ["", table([row["name"] for row in result["columns"]],
                            [[str(value) for value in row] for row in result["rows"]])]
    if "result" in result:
        lines += ["", table(["what", "value"], [[key, f"{value:,}"] for key, value in result["result"].items()])]
    if "note" in result:
        lines += ["", result["note"]]
    for picture in result.get("pictures", []):
        lines += ["", f"![{picture['title']}]({picture['file']})"]
    return "\n".join(lines)


def render():
    results = {path.stem: json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))
               if path.stem != "published"}
    parts = [HEAD, "## Published numbers and Lockstep's", "", published_table(results), "",
             "Lockstep's accuracy is measured on the whole test set without augmentation; the published one on augmented test images.", "",
             "## Sigma2's speed-up and efficiency", "",
             "Efficiency is the speed-up divided by the ratio of the GPUs. `lockstep bench scaling` prints it both ways: from the "
             "samples/s of runs with equal settings, and, under \"by duration\", from the durations of whole runs.", "",
             speed_up_table(), "", "## Runs", "", "\n\n".join(run_section(result) for result in results.values())]
    return "\n".join(parts) + "\n"


def main():
    page = render()
    if sys.argv[1:] == ["--check"]:
        if PAGE.exists() and PAGE.read_text() == page:
            return 0
        print("docs/results.md differs from bench/results: run bench/render_results.py", file=sys.stderr)
        return 1
    PAGE.write_text(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
