"""The table of commands, as a user sees it: every command answers --help, is in the usage text and in the man page."""

import os
import pathlib
import re
import subprocess
import unittest

LOCKSTEP = pathlib.Path(os.environ["LOCKSTEP_BIN_DIR"]) / "lockstep"
GROUPS = ("bench", "ckpt")


def run(*words, **variables):
    return subprocess.run([LOCKSTEP, *words], stdin=subprocess.DEVNULL, text=True, capture_output=True, timeout=60,
                          env={**os.environ, **variables})


def commands():
    """The commands of the usage text, without `lockstep`."""
    return re.findall(r"^  lockstep ([a-z][a-z ]*?)  ", run("--help").stdout, re.MULTILINE)


def flags_of(text):
    return {flag.replace("{false}", "") for line in text.splitlines() if line.startswith("  -")
            for flag in line.split()[0].split(",")}


class CommandsTest(unittest.TestCase):
    def test_every_command_answers_help(self):
        self.assertGreater(len(commands()), 18)
        for command in commands():
            with self.subTest(command=command):
                words = command.split()
                done = run(*words, "--help")
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                self.assertIn(f"lockstep {command} ", done.stdout)
                if command != "help":
                    self.assertEqual(run("help", *words).stdout, done.stdout)

    def test_without_words_it_lists_the_commands(self):
        self.assertEqual(run().stdout, run("--help").stdout)
        self.assertEqual(run("help").stdout, run("--help").stdout)
        self.assertRegex(run("--version").stdout, r"^lockstep [0-9.]+\ncommit .*\nLibTorch  [0-9.]+ in /.*\nplugins   .*\n$")

    def test_the_man_page_has_every_flag_of_every_command(self):
        page = run("man").stdout.replace("\\-", "-").replace("\\fB", "").replace("\\fR", "").replace("\\fI", "")
        sections = dict(zip(*[iter(re.split(r"^\.SS lockstep ([a-z][a-z0-9 -]*?) (?=\[|COMMAND)", page, flags=re.MULTILINE)[1:])] * 2))
        recipes = [name for name in sections if name.startswith("train ")]
        self.assertGreater(len(recipes), 4)
        self.assertEqual(set(sections), {*commands(), *recipes})
        for name in sections:
            with self.subTest(command=name):
                # What the commands of a group share is in the section of the group.
                text = sections[name] + sections.get(name.rpartition(" ")[0], "")
                listed = set(re.findall(r"(?<![\w-])--?[a-z][\w-]*", text))
                wanted = {flag for flag in flags_of(run(*name.split(), "--help").stdout) if "_" not in flag}
                self.assertEqual(wanted - listed - {"--help", "-h"}, set())

    def test_variables_of_options_change_neither_page_nor_script(self):
        for words in (["man"], ["completion", "bash"]):
            done = run(*words, LOCKSTEP_CONFIG="/no/such/file", LOCKSTEP_MAX_ITER="7654", PET_NODE_RANK="x")
            self.assertEqual((done.returncode, done.stdout, done.stderr), (0, run(*words).stdout, ""))

    def test_the_readme_lists_every_command(self):
        readme = (pathlib.Path(__file__).parents[2] / "README.md").read_text()
        listed = set(re.findall(r"^lockstep ((?:bench )?[a-z]+)  ", readme, re.MULTILINE))
        ours = {command for command in commands() if command != "bench" and not command.startswith("ckpt ")}
        self.assertEqual(listed, ours)

    def test_an_unknown_command_is_a_usage_error(self):
        for words, nearest in {("tarin", "mnist"): "train", ("bench", "dta"): "data", ("ckpt", "lss"): "ls"}.items():
            done = run(*words)
            self.assertEqual((done.returncode, done.stdout), (2, ""))
            self.assertIn(f"did you mean '{nearest}'?", done.stderr)
        for group in GROUPS:
            done = run(group)
            self.assertEqual((done.returncode, done.stdout), (2, ""))
            self.assertIn(f"lockstep {group} needs a command: ", done.stderr)

    def test_an_unknown_flag_is_a_usage_error(self):
        for command in commands():
            if command in GROUPS:
                continue
            with self.subTest(command=command):
                done = run(*command.split(), *(["sine"] if command == "train" else []), "--frobnicate")
                self.assertEqual((done.returncode, done.stdout), (2, ""))
                self.assertIn("--frobnicate", done.stderr)


if __name__ == "__main__":
    unittest.main()
