#!/usr/bin/env python3
"""Checks the pages and the public headers as documentation: script/lint-docs.py [ROOT].

Paths that pages name exist. A path is a word in backquotes that begins with src/, include/, tests/, script/, bench/,
cmake/, docs/ or examples/. What holds a placeholder (a capital word, <, *, {) is passed over.

Every public header starts with its purpose, an example and the page to read next, in the form that
tests/consumer/docs/blocks.py describes. That script also compiles the examples.
"""

import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests" / "consumer" / "docs"))
sys.dont_write_bytecode = True
import blocks

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
    for header in blocks.headers(root):
        try:
            blocks.read_header(header, root)
        except blocks.Mistakes as mistakes:
            yield str(mistakes)


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
    found = list(problems(root))
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
