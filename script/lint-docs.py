#!/usr/bin/env python3
"""Checks that paths which pages name exist: script/lint-docs.py [ROOT].

A path is a word in backquotes that begins with src/, include/, tests/, script/, bench/, cmake/, docs/ or examples/. What
holds a placeholder (a capital word, <, *, {) is passed over.
"""

import pathlib
import re
import sys

PATH = re.compile(r"`((?:src|include|tests|script|bench|cmake|docs|examples)/[\w./-]+)`")


def problems(root):
    for page in sorted([*root.glob("*.md"), *(root / "docs").glob("*.md")]):
        if page.name == "CHANGELOG.md":
            continue  # it names what is gone
        for number, line in enumerate(page.read_text().splitlines(), 1):
            for name in PATH.findall(line):
                if re.search(r"\b[A-Z]{2,}\b", name) or (root / name).exists():
                    continue
                yield f"{page.relative_to(root)}:{number}: there is no {name}"


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
    found = list(problems(root))
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
