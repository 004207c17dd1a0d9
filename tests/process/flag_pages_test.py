"""The pages and --help have the same flags: docs/commands.md has every flag of every command, the tables of the recipes' flags
have these recipes' defaults, and a command line on a page has no flag that its command lacks.

docs/trainer.md has the flags of every training; tests/unit/train/option_page_test.cpp compares it with the option table.
"""

import functools
import os
import pathlib
import re
import subprocess
import sys
import unittest

LOCKSTEP = pathlib.Path(os.environ["LOCKSTEP_BIN_DIR"]) / "lockstep"
ROOT = pathlib.Path(__file__).parents[2]
DOCS = ROOT / "docs"

# The recipes of a table of flags, by its page and the heading above it.
TABLES = {
    ("recipes.md", "mnist, fashion-mnist"): ["mnist", "fashion-mnist"],
    ("recipes.md", "cifar100"): ["cifar100"],
    ("recipes.md", "vit"): ["vit"],
    ("recipes.md", "gpt"): ["gpt"],
    ("exported.md", "lockstep train model.pt2"): ["model.pt2"],
}


@functools.cache
def options(command):
    """The flags of --help: spelling with dashes -> default, or None."""
    done = subprocess.run([LOCKSTEP, *command.split(), "--help"], stdin=subprocess.DEVNULL, text=True, capture_output=True,
                          timeout=60, check=True)
    found = {}
    for spellings, rest in re.findall(r"^  (-\S+)(.*)$", done.stdout, re.MULTILINE):
        default = re.match(r" [A-Z=]+?=([^\s(]+)", rest)
        for name in spellings.split(","):
            found[name.replace("{false}", "")] = default[1] if default else None
    return found


def tables_of_flags():
    """Page, heading, and rows of first cell and second cell of each table of flags with defaults."""
    for page in sorted(DOCS.glob("*.md")):
        if page.name == "commands.md":
            continue
        heading, rows = None, None
        for line in [*page.read_text().splitlines(), ""]:
            if line.startswith("## "):
                heading = line[3:]
            if line == "| flag | default | meaning |":
                rows = []
            elif rows is not None and line.startswith("| "):
                rows.append([cell.strip() for cell in line.split("|")[1:3]])
            elif rows is not None and not line.startswith("|"):
                yield page.name, heading, rows
                rows = None


def same_value(text, default):
    try:
        return float(text) == float(default)
    except ValueError:
        return text == default


def complaint(command, flag, text):
    """What is wrong with a flag and its default on a page; None: nothing."""
    if flag not in options(command):
        return f"lockstep {command} has no {flag}"
    default = options(command)[flag]
    if default is None:
        # A flag without a value, or a default that depends on something, which the page tells in words.
        is_value = re.fullmatch(r"[0-9][0-9.e+-]*", text)
        return f"lockstep {command} {flag} has no default, and the page has {text}" if is_value else None
    return None if same_value(text, default) else f"lockstep {command} {flag} has the default {default}, and the page has {text}"


@functools.cache
def commands():
    usage = subprocess.run([LOCKSTEP, "--help"], check=True, text=True, capture_output=True).stdout
    return set(re.findall(r"^  lockstep ([a-z][a-z ]*?)  ", usage, re.MULTILINE))


def flags_of_line(line):
    """Pairs of a command and a flag of it in a line `COMMAND --flag value ...   what it does`."""
    words = line.partition("   ")[0].split()
    command = " ".join(words[:2]) if " ".join(words[:2]) in commands() else words[0]
    if command == "train" and len(words) > 1:
        command += " " + words[1].partition("|")[0]
    for word in words[len(command.split()):]:
        # A program and its own flags, or another command of the shell.
        if word in ("--", "&&", "|", ">") or word.startswith("./") or word.endswith(".py") or word == "lockstep":
            return
        if flag := re.match(r"\[?(--?[a-z][\w-]*)", word):
            yield command, flag[1]


def rows_of_table(page, head):
    """The rows below a line of a page, as text."""
    table = (DOCS / page).read_text().partition(head + "\n")[2].partition("\n\n")[0]
    return table.splitlines()[1:]


class FlagPagesTest(unittest.TestCase):
    def test_the_page_of_commands_is_that_of_the_option_tables(self):
        done = subprocess.run([sys.executable, ROOT / "script" / "commands-page.py"], check=True, text=True, capture_output=True)
        self.assertGreater(done.stdout.count("\n| `--"), 250)
        self.assertEqual((DOCS / "commands.md").read_text(), done.stdout, "script/commands-page.py --fix writes docs/commands.md")

    def test_tables_of_recipes_have_their_flags_and_defaults(self):
        tables = {(page, heading): rows for page, heading, rows in tables_of_flags()}
        self.assertEqual(set(tables), set(TABLES))
        checked = 0
        for place, recipes in TABLES.items():
            for flags, defaults in tables[place]:
                names = re.findall(r"`(--[a-z-]+)[^`]*`", flags)
                values = defaults.split(", ") if len(names) > 1 and ", " in defaults else [defaults] * len(names)
                with self.subTest(place=place, flags=flags):
                    self.assertEqual(len(values), len(names), defaults)
                    wrong = [complaint(f"train {recipe}", name, value) for recipe in recipes for name, value in zip(names, values)]
                    self.assertEqual([text for text in wrong if text], [])
                    checked += len(names)
        self.assertGreater(checked, 60)

    def test_tables_of_recipes_are_complete(self):
        for place, recipes in TABLES.items():
            page = (DOCS / place[0]).read_text()
            shared = set(options("train sine"))
            for recipe in recipes:
                with self.subTest(recipe=recipe):
                    own = {name for name in options(f"train {recipe}") if "_" not in name and not name.startswith("--no-")} - shared
                    self.assertEqual({name for name in own if not re.search(rf"`(--no-{name[2:]}|{name})\b", page)}, set())

    def test_the_tables_of_run_have_its_flags_and_say_which_have_no_variable(self):
        text = subprocess.run([LOCKSTEP, "run", "--help"], check=True, text=True, capture_output=True).stdout
        variables = {name for spellings, rest in re.findall(r"^  (-\S+)(.*)$", text, re.MULTILINE) if "(Env:" in rest
                     for name in spellings.replace("{false}", "").split(",")}
        listed = set()
        heads = ["| torchrun | `lockstep run` |", "| flag | meaning |"]
        for row in [row for head in heads for row in rows_of_table("torchrun.md", head)]:
            names = set(re.findall(r"`(--?[a-z][a-z-]*)", row.split("|")[1]))
            with self.subTest(row=row):
                self.assertEqual(names - set(options("run")), set())
                self.assertEqual("no variable" in row, not names & variables)
            listed |= names
        self.assertEqual({name for name in options("run") if "_" not in name} - listed, {"--help", "-h"})

    def test_the_tables_of_a_batch_script_and_of_all_recipes_have_flags_of_their_command(self):
        for page, head, command in [("slurm.md", "| flag | in the script |", "slurm"),
                                    ("recipes.md", "| flag | meaning |", "train mnist")]:
            rows = rows_of_table(page, head)
            self.assertGreater(len(rows), 5)
            for row in rows:
                names = set(re.findall(r"`(--[a-z][a-z-]*)", row.split("|")[1]))
                with self.subTest(page=page, row=row):
                    self.assertTrue(names)
                    self.assertEqual(names - set(options(command)), set())

    def test_command_lines_on_pages_have_flags_of_their_command(self):
        checked = 0
        for page in [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]:
            for line in re.findall(r"(?:^|`)lockstep ([a-z][^`\n]*)", page.read_text(), re.MULTILINE):
                for command, flag in flags_of_line(line):
                    with self.subTest(page=page.name, line=line):
                        self.assertIn(flag, options(command))
                    checked += 1
        self.assertGreater(checked, 80)


if __name__ == "__main__":
    unittest.main()
