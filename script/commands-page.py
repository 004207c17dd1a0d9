#!/usr/bin/env python3
"""Writes docs/commands.md, the flags of every command, from the manual page: script/commands-page.py [--fix].

Both come from the option tables of the commands. Without --fix the page is printed. `lockstep` is that of build/bin, or of the
folder LOCKSTEP_BIN_DIR. tests/process/flag_pages_test.py compares the page.
"""

import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "commands.md"
TOP = """\
# Commands

Every flag of every command, as the `--help` of the command and `lockstep man` print them. `script/commands-page.py --fix` writes
this page. A flag may be written with dashes or with underscores between its words; it overrides its variable. `lockstep train` also
takes its flags from a TOML file: see [trainer.md](trainer.md), which explains the flags of a training, and [recipes.md](recipes.md)
for those of a recipe. `lockstep train MODEL.pt2` is described in [exported.md](exported.md).
"""
FACTS = re.compile(r" \(((?:values: |default: |required|variable: )[^()]*)\)$")


def plain(text):
    """Text without the marks of man(7)."""
    return re.sub(r"\\f[BIR]", "", text).replace(r"\-", "-").replace(r"\&", "").replace(r"\e", "\\")


def cell(text):
    return re.sub(r"([|*<])", r"\\\1", text)


def row(flags, text):
    facts = {}
    if match := FACTS.search(text):
        text = text[:match.start()]
        facts = dict(fact.partition(": ")[::2] for fact in match[1].split("; "))
    meaning = text + (f" ({facts['values']})" if "values" in facts else "") + (", required" if "required" in facts else "")
    names = ", ".join(f"`{name}`" for name in flags.removesuffix(" VALUE").split(", "))
    default, variable = (f"`{facts[key]}`" if key in facts else "" for key in ("default", "variable"))
    return f"| {names} | {default} | {cell(meaning)} | {variable} |"


def rows(options):
    """A row for each option. The opposite of a flag, --no-NAME, is in the row of the flag."""
    result = []
    for option in options:
        flags, text = plain(option).rstrip("\n").split("\n", 1)
        positive = flags.replace("--no-", "--", 1)
        if text.startswith("not: ") and result and result[-1].startswith(f"| `{positive}`"):
            result[-1] = result[-1].replace(f"`{positive}`", f"`{positive}`, `{flags}`", 1)
        else:
            result.append(row(flags, text))
    return result


def section(synopsis, body):
    """The part of a command: its description, examples, and options as a table."""
    description, *options = re.split(r"^\.TP\n", body, flags=re.MULTILINE)
    description = description.replace(".PP\n.nf\n", "\n```text\n").replace(".fi\n", "```\n").replace(".PP\n", "\n")
    lines = [f"## {synopsis}", "", plain(description).strip(), ""]
    if options:
        lines += ["| flag | default | meaning | variable |", "|---|---|---|---|"]
        lines += rows(options) + [""]
    return "\n".join(lines)


def page():
    folder = pathlib.Path(os.environ.get("LOCKSTEP_BIN_DIR", ROOT / "build" / "bin"))
    manual = subprocess.run([folder / "lockstep", "man"], check=True, text=True, capture_output=True).stdout
    commands = manual.partition(".SH COMMANDS\n")[2].partition(".SH EXIT STATUS\n")[0]
    parts = re.split(r"^\.SS (.*)\n", commands, flags=re.MULTILINE)[1:]
    return "\n".join([TOP, *(section(plain(name), body) for name, body in zip(parts[::2], parts[1::2]))])


def main(arguments):
    if arguments == ["--fix"]:
        PAGE.write_text(page())
        return 0
    if arguments:
        print(__doc__, file=sys.stderr)
        return 2
    print(page(), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
