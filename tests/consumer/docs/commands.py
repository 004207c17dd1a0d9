"""Checks the commands that the pages print: commands.py BIN PROGRAM

BIN is the folder with the programs of a build, PROGRAM is a program that calls lockstep::launch. The commands are not
run. A command of `lockstep` must exist, and its --help must name every flag; the --help of PROGRAM must name every flag
of ./NAME. A script must exist, and its text must name its flags.

A line of a block is a command, followed by its explanation after two spaces or a #. A line that begins with a space
continues the explanation of the previous line. In the text outside of blocks, `lockstep ...` is a command.
"""

import functools
import os
import pathlib
import re
import subprocess
import sys

import blocks

# Other programs, and commands of the shell. The programs that they start are checked.
FOREIGN = ("torchrun", "mpirun", "srun", "cmake", "export", "pip")
GROUPS = ("bench", "ckpt")  # lockstep GROUP COMMAND


class Wrong(Exception):
    """A sentence that says what is wrong with a command."""


@functools.cache
def help_of(*command):
    done = subprocess.run([*command, "--help"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    if done.returncode != 0:
        raise Wrong(f"'{' '.join([pathlib.PurePath(command[0]).name, *command[1:]])} --help' fails: "
                    f"{(done.stdout + done.stderr).strip()}")
    return done.stdout


def check_flags(words, text, whose):
    for word in words:
        flag = re.match(r"--?[A-Za-z][\w-]*", word)
        if flag and not re.search(rf"(?<![\w-]){re.escape(flag[0])}(?![\w-])", text):
            raise Wrong(f"{whose} has no {flag[0]}")


def is_program(word):
    return word.startswith("./") or word.endswith(".py") or word == "lockstep"


class Checker:
    def __init__(self, bin_dir, program):
        self.bin_dir, self.program = bin_dir, program

    def check(self, words):
        while words and re.match(r"[A-Z_]+=", words[0]):
            words = words[1:]
        if not words:
            return
        first, rest = words[0], words[1:]
        if "&&" in rest:
            self.check(rest[rest.index("&&") + 1:])
            rest = rest[:rest.index("&&")]
        if pathlib.PurePath(first).name == "lockstep":
            self.check_lockstep(rest)
        elif first.startswith("./"):
            check_flags(rest, help_of(str(self.program)), "a program that calls lockstep::launch")
        elif first.endswith(".py"):
            pass
        elif re.match(r"(script|\.ci|tests)/", first):
            self.check_script(first, rest)
        elif re.match(r"build[\w-]*/bin/", first):
            self.check_built(first)
        elif first in FOREIGN:
            self.check_started(rest)
        else:
            raise Wrong(f"'{first}' is no command that this test knows; what a program prints is ```text")

    def check_started(self, words):
        start = next((i for i, word in enumerate(words) if is_program(word)), None)
        if start is not None:
            self.check(words[start:])

    def check_lockstep(self, words):
        names = words[:2 if words and words[0] in GROUPS else 1]
        if not names or names[0].startswith("-"):
            return check_flags(words, help_of(str(self.bin_dir / "lockstep")), "lockstep")
        if names[0] == "train" and len(words) > 1 and words[1][0] != "-":
            names = ["train", words[1].split("|")[0]]
        own, started = words[len(names):], []
        if "--" in own:
            own, started = own[:own.index("--")], own[own.index("--") + 1:]
        elif names == ["run"]:
            start = next((i for i, word in enumerate(own) if is_program(word)), len(own))
            own, started = own[:start], own[start:]
        text, whole = help_of(str(self.bin_dir / "lockstep"), *names), f"lockstep {' '.join(names)}"
        check_flags(own, text, whole)
        if started:
            self.check(started)

    @staticmethod
    def check_script(name, words):
        path = blocks.ROOT / name
        if not os.access(path, os.X_OK):
            raise Wrong(f"there is no script {name}")
        check_flags(words, path.read_text(), name)

    def check_built(self, name):
        program = name.split("/bin/")[1]
        # Programs of the preset fuzz are not in every build: each has a folder of files.
        fuzzed = re.fullmatch(r"fuzz/(\w+)", program)
        if not (blocks.ROOT / "tests" / program if fuzzed else self.bin_dir / program).exists():
            raise Wrong(f"no build makes {name}")


def command_of(line):
    """The words of a line up to what explains it."""
    # `torchrun     --nproc-per-node 2`: the words of a command may be put below those of another one.
    line = re.sub(r"^(\S+) +(?=-)", r"\1 ", line)
    line = re.sub(r"^env \$\([^)]*\) ", "", line)
    return re.split(r"\s{2,}|\s#|\s>", line)[0].replace("[", " ").replace("]", " ").split()


def commands(page, page_blocks):
    """(line, words) of all commands that a page prints."""
    languages = {}
    for block in page_blocks:
        languages.update(dict.fromkeys(range(block.line, block.end + 1), block.language))
    for number, line in enumerate((blocks.ROOT / page).read_text().splitlines(), 1):
        if number not in languages:
            yield from ((number, command_of(text)) for text in re.findall(r"`((?:build/bin/)?lockstep [^`]*)`", line))
        elif languages[number] == "" and not re.match(r"\s|```|$", line):
            yield number, command_of(line)


def main(bin_dir, program):
    checker, failed, count = Checker(pathlib.Path(bin_dir), pathlib.Path(program)), False, 0
    all_blocks = blocks.read_all()
    for page in blocks.pages():
        for number, words in commands(page, [block for block in all_blocks if block.page == page]):
            count += 1
            try:
                checker.check(words)
            except Wrong as wrong:
                print(f"{page}:{number}: {wrong}", file=sys.stderr)
                failed = True
    print(f"{count} commands of the pages")
    return 1 if failed else 0


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
