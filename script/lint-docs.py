#!/usr/bin/env python3
"""Checks the pages and the public headers as documentation: script/lint-docs.py [ROOT].

A path in backquotes that begins with src/, include/, tests/, script/, bench/, cmake/, docs/ or examples/ must exist, unless it
holds a placeholder (a word in capitals). The target of a relative link must exist. The picture and the table of folders in
docs/architecture.md must name every folder of src.

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
LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)")
ARCHITECTURE = "docs/architecture.md"


def missing_paths(root, page):
    for number, line in enumerate(page.read_text().splitlines(), 1):
        for name in PATH.findall(line):
            if not re.search(r"\b[A-Z]{2,}\b", name) and not (root / name).exists():
                yield f"{page.relative_to(root)}:{number}: there is no {name}"
        for target in LINK.findall(line):
            if not (page.parent / target).exists():
                yield f"{page.relative_to(root)}:{number}: the link leads nowhere: {target}"


def missing_folders(root):
    page = root / ARCHITECTURE
    if not page.exists():
        return
    text = page.read_text()
    picture = re.search(r"^```text\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    drawn = set(re.findall(r"\w+", picture[1])) if picture else set()
    listed = set(re.findall(r"^\| `src/(\w+)` \|", text, re.MULTILINE))
    for folder in sorted(path.name for path in (root / "src").iterdir() if path.is_dir()):
        if folder not in drawn:
            yield f"{ARCHITECTURE}: the picture lacks src/{folder}"
        if folder not in listed:
            yield f"{ARCHITECTURE}: the table of folders lacks src/{folder}"


def problems(root):
    for page in sorted([*root.glob("*.md"), *(root / "docs").glob("*.md")]):
        if page.name != "CHANGELOG.md":  # it names files of earlier versions
            yield from missing_paths(root, page)
    yield from missing_folders(root)
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
