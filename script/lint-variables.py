#!/usr/bin/env python3
"""Checks that docs/environment.md names every environment variable of the source: script/lint-variables.py [ROOT].

A variable is a string of capitals and underscores in src or include, or an option that an option table
(config/option_table.h) declares. The page must not name any other.
"""

import pathlib
import re
import sys

PAGE = "docs/environment.md"
LITERAL = re.compile(r'"([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+|RANK|PATH|TMPDIR|LOGLEVEL)"')
OPTION = re.compile(r'\.add\(\s*"([a-z0-9_]+)"((?:[^;]|\n)*?)(?=\.add\(|;)')
# The files with an option table, and the prefix of its variables.
TABLES = {"src/train/config.cpp": "LOCKSTEP_", "src/launcher/agent/run_options.cpp": "PET_"}
# Strings of capitals that are not variables: states and mails of a Slurm job, dtypes of safetensors, limits of a process, an
# instruction set of oneDNN.
NO_VARIABLES = {"OUT_OF_MEMORY", "NODE_FAIL", "BOOT_FAIL", "F8_E4M3", "F8_E5M2", "RLIMIT_AS", "RLIMIT_DATA",
                "AVX512_CORE_FP16", "INVALID_DEPEND", "STAGE_OUT", "TIME_LIMIT", "TIME_LIMIT_90", "TIME_LIMIT_80",
                "TIME_LIMIT_50", "ARRAY_TASKS"}


def variables_of_source(root):
    found = set()
    for path in [*root.glob("src/**/*.cpp"), *root.glob("src/**/*.h"), *root.glob("include/**/*.h")]:
        found.update(LITERAL.findall(path.read_text()))
    for file, prefix in TABLES.items():
        text = (root / file).read_text()
        if "add_config_file()" in text:
            found.add(prefix + "CONFIG")
        for name, rest in OPTION.findall(text):
            if "has_variable = false" not in rest:
                found.add(prefix + name.upper())
    return found - NO_VARIABLES


def variables_of_page(root):
    return set(re.findall(r"`([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+|RANK|PATH|TMPDIR|LOGLEVEL)`", (root / PAGE).read_text()))


def main(arguments):
    root = pathlib.Path(arguments[0] if arguments else ".")
    source, page = variables_of_source(root), variables_of_page(root)
    for name in sorted(source - page):
        print(f"{PAGE}: the source uses a variable that is not here: {name}")
    for name in sorted(page - source):
        print(f"{PAGE}: no source uses this variable: {name}")
    return 1 if source != page else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
