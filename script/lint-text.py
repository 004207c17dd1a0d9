#!/usr/bin/env python3
"""Checks the text of tracked files: script/lint-text.py FILE...

Size budgets: above the soft one a remark, above the hard one an error. Words that
must not be left behind.
"""

import pathlib
import re
import sys

# Suffix -> lines: remark above the first, error above the second.
BUDGETS = {".h": (300, 500), ".cpp": (400, 800), ".py": (400, 800)}

# Spelled so that this file does not find itself.
FORBIDDEN = [
    (re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X)\b"), "unfinished work is an issue, not a comment"),
    (re.compile(r"/(home|root|Users)" r"/\w"), "somebody's home folder"),
    (re.compile(r"\b(GTEST_" r"SKIP|DISABLED" r"_\w+|pytest\.(mark\.)?(skip|xfail))"), "a skipped test is a failed test"),
    (re.compile(r"^(<<<<<<<|>>>>>>>) ", re.MULTILINE), "a merge conflict"),
]


def remarks(path, text):
    """(is_error, sentence) for each finding."""
    lines = text.count("\n")
    soft, hard = BUDGETS.get(path.suffix, (None, None))
    if soft is not None and lines > soft:
        yield lines > hard, f"{path}: {lines} lines, the budget is {soft}, the limit {hard}"
    for pattern, reason in FORBIDDEN:
        for match in pattern.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            yield True, f"{path}:{line}: {match.group(0)!r}: {reason}"
    if text and not text.endswith("\n"):
        yield True, f"{path}: no newline at the end"


def main(names):
    failed = False
    for name in names:
        path = pathlib.Path(name)
        if path.match("tests/fuzz/*/*"):
            continue  # bytes for a reader, whatever they are
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue  # a golden file
        for is_error, sentence in remarks(path, text):
            failed |= is_error
            print(sentence if is_error else f"{sentence} (remark)")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
