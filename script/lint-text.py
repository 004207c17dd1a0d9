#!/usr/bin/env python3
"""Checks that tracked files contain no text that must not be committed: script/lint-text.py FILE..."""

import pathlib
import re
import sys

# The words are split, so that this file does not match itself.
FORBIDDEN = [
    (re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X)\b"), "unfinished work is an issue, not a comment"),
    (re.compile(r"/(home|root|Users)" r"/\w"), "a path in a home folder"),
    (re.compile(r"\b(GTEST_" r"SKIP|DISABLED" r"_\w+|pytest\.(mark\.)?(skip|xfail))"), "a skipped test is a failed test"),
    (re.compile(r"^(<<<<<<<|>>>>>>>) ", re.MULTILINE), "a merge conflict"),
]

# base::Mutex is std::mutex with the annotations that clang checks.
STANDARD_LOCK = re.compile(r"\bstd::((recursive_|shared_|timed_|recursive_timed_|shared_timed_)?mutex"
                           r"|(lock_guard|unique_lock|scoped_lock|shared_lock)|condition_variable(_any)?)\b[^;\n]*")
# Locks of LibTorch: std::mutex is their type.
TORCH_LOCKS = re.compile(r"\bgenerator(->|\.)mutex(_|\(\))")


def remarks(path, text):
    """Yields a sentence for each finding."""
    for pattern, reason in FORBIDDEN:
        for match in pattern.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            yield f"{path}:{line}: {match.group(0)!r}: {reason}"
    if path.parts[:1] == ("src",) and path.parts[1:2] != ("base",):
        for match in STANDARD_LOCK.finditer(text):
            if not TORCH_LOCKS.search(match.group(0)):
                line = text.count("\n", 0, match.start()) + 1
                yield f"{path}:{line}: {match.group(0)!r}: locks are base::Mutex, whose use clang checks"
    if text and not text.endswith("\n"):
        yield f"{path}: no newline at the end"


def main(names):
    failed = False
    for name in names:
        path = pathlib.Path(name)
        if path.match("tests/fuzz/*/*") or "golden" in path.parts:
            continue  # input for a reader: any bytes
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue  # a binary file
        for sentence in remarks(path, text):
            failed = True
            print(sentence)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
