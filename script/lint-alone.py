#!/usr/bin/env python3
"""Compiles the sources that use LibTorch one by one, without writing objects: script/lint-alone.py BUILD

The daily build compiles batches of sources, in which one source may live by the includes of
another. BUILD is a folder configured without batches (LOCKSTEP_UNITY=OFF) whose precompiled
headers are built. Sources without LibTorch are not checked here: clang-tidy compiles each of
them by itself.
"""

import concurrent.futures
import json
import os
import pathlib
import shlex
import subprocess
import sys


def check(entry):
    """What the compiler says; empty: nothing."""
    command = [word for word in shlex.split(entry["command"]) if word != "ccache"]
    output = command.index("-o")
    del command[output:output + 2]
    done = subprocess.run([*command, "-fsyntax-only"], cwd=entry["directory"], text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT)
    return done.stdout if done.returncode != 0 else ""


def main(arguments):
    build = pathlib.Path(arguments[0]).resolve()
    source = pathlib.Path(__file__).resolve().parent.parent / "src"
    entries = [entry for entry in json.loads((build / "compile_commands.json").read_text())
               if pathlib.Path(entry["file"]).is_relative_to(source) and "USE_C10D_GLOO" in entry["command"]]
    failed = not entries
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for entry, output in zip(entries, pool.map(check, entries)):
            if output:
                print(f"{entry['file']} does not compile by itself:\n{output}")
                failed = True
    print(f"  {len(entries)} sources")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
