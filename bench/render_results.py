#!/usr/bin/env python3
"""Writes docs/results.md from bench/results/*.json; --check: says whether it is as it would be written.

A file in bench/results holds what one command gave on one machine. published.json holds
the numbers of the pages that the recipes come from.
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
    return table(["page", "what", "its hardware", "s", "img/s", "accuracy", "ours on", "s", "img/s", "accuracy"], rows)


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
    return "\n".join(lines)


def render():
    results = {path.stem: json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))
               if path.stem != "published"}
    parts = [HEAD, "## The pages' numbers and ours", "", published_table(results), "",
             "The accuracy is that of the whole test set, not augmented; the pages' is of augmented test images.", "",
             "## Runs", "", "\n\n".join(run_section(result) for result in results.values())]
    return "\n".join(parts) + "\n"


def main():
    page = render()
    if sys.argv[1:] == ["--check"]:
        if PAGE.exists() and PAGE.read_text() == page:
            return 0
        print("docs/results.md is not what bench/results gives: run bench/render_results.py", file=sys.stderr)
        return 1
    PAGE.write_text(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
