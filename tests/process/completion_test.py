"""The scripts of `lockstep completion` in their shells: the test types keys into an interactive shell,
and a program `lockstep` in its PATH prints the arguments of the completed line."""

import os
import pathlib
import pty
import select
import subprocess
import tempfile
import time
import unittest

LOCKSTEP = pathlib.Path(os.environ["LOCKSTEP_BIN_DIR"]) / "lockstep"
DEADLINE_S = 60
SHELLS = {"bash": ["bash", "--norc", "--noprofile", "-i"], "zsh": ["zsh", "-f", "-i"], "tcsh": ["tcsh", "-f"]}
# How each shell loads the script, a file `_lockstep` in the folder.
READ = {"bash": "set +o history; source ./_lockstep",
        "zsh": "autoload -Uz compinit; compinit -u -D; source ./_lockstep",
        "tcsh": "set edit; source ./_lockstep"}
READ_BY_FPATH = "fpath=($PWD $fpath); autoload -Uz compinit; compinit -u -D"


def script_of(shell):
    return subprocess.run([LOCKSTEP, "completion", shell], check=True, text=True, capture_output=True).stdout


class Terminal:
    """An interactive shell on its own terminal."""

    def __init__(self, shell, folder, read):
        (folder / "_lockstep").write_text(script_of(shell))
        (folder / "lockstep").write_text("#!/bin/sh\nprintf 'ARGUMENTS'; printf '[%s]' \"$@\"; echo END\n")
        (folder / "lockstep").chmod(0o755)
        (folder / "sample.txt").touch()
        environment = {"PATH": f"{folder}:/usr/bin:/bin", "TERM": "dumb", "HOME": str(folder), "LC_ALL": "C"}
        self._ours, theirs = pty.openpty()
        self._process = subprocess.Popen(SHELLS[shell], stdin=theirs, stdout=theirs, stderr=theirs, cwd=folder,
                                         env=environment, start_new_session=True)
        os.close(theirs)
        self.run(read)

    def run(self, line):
        """Types a line, and returns the terminal's text up to the end of its command.

        The terminal shows what is typed, too. So the line types EN''DED, and ENDED is printed when the command has ended.
        """
        os.write(self._ours, f"{line}\necho EN''DED\n".encode())
        return self._read("ENDED")

    def complete(self, keys):
        """Returns the arguments of `lockstep` after these keys and the Tab key."""
        text = self.run(f"lockstep {keys}\t")
        begin = text.rindex("ARGUMENTS") + len("ARGUMENTS")
        return text[begin + 1:text.index("]END", begin)].split("][")

    def _read(self, end):
        text, deadline = "", time.monotonic() + DEADLINE_S
        while end not in text:
            ready = select.select([self._ours], [], [], deadline - time.monotonic())[0] if time.monotonic() < deadline else []
            if not ready:
                raise AssertionError(f"no {end!r} from the shell: {text}")
            text += os.read(self._ours, 1 << 16).decode()
        return text

    def close(self):
        self._process.kill()
        self._process.wait()
        os.close(self._ours)


class CompletionTest(unittest.TestCase):
    def check(self, shell, expected, read=None):
        with tempfile.TemporaryDirectory() as folder:
            terminal = Terminal(shell, pathlib.Path(folder), read or READ[shell])
            self.addCleanup(terminal.close)
            for keys, arguments in expected.items():
                with self.subTest(shell=shell, keys=keys):
                    self.assertEqual(terminal.complete(keys), arguments)

    # Every shell completes flags, values with choices, and files.
    COMMON = {
        "repo": ["report"],
        "bench coll": ["bench", "collectives"],
        "ckpt insp": ["ckpt", "inspect"],
        "train fash": ["train", "fashion-mnist"],
        "completion tc": ["completion", "tcsh"],
        "ckpt export --pref": ["ckpt", "export", "--prefix"],
        "ckpt ls --best ma": ["ckpt", "ls", "--best", "max"],
        "ckpt ls samp": ["ckpt", "ls", "sample.txt"],
        "slurm --nodes 2 --sty": ["slurm", "--nodes", "2", "--style"],
        "plan vit --persist": ["plan", "vit", "--persistence-threshold"],
        "bench data --layout channels_l": ["bench", "data", "--layout", "channels_last"],
        "train vit --checkpoint-k": ["train", "vit", "--checkpoint-keep"],
        "run --standa": ["run", "--standalone"],
        "run --rdzv-b": ["run", "--rdzv-backend"],
        "run --log-line": ["run", "--log-line-prefix-template"],
        "run --on-stall rep": ["run", "--on-stall", "report"],
        "run --on_stall ab": ["run", "--on_stall", "abort"],
        "run --numa-binding core": ["run", "--numa-binding", "core-complex"],
        "run --print-completion tc": ["run", "--print-completion", "tcsh"],
        "run --token-file samp": ["run", "--token-file", "sample.txt"],
        "run -n 2 samp": ["run", "-n", "2", "sample.txt"],
        "run --nnodes 1:2 --nproc_per_node=2 --standa": ["run", "--nnodes", "1:2", "--nproc_per_node=2",
                                                         "--standalone"],
    }
    # Flags after the program belong to the program, and other commands have other flags.
    OTHERS = {
        "slurm --nodes 2 ls --sty": ["slurm", "--nodes", "2", "ls", "--sty"],
        "bench scaling --ranks 1,2 -- ls --over": ["bench", "scaling", "--ranks", "1,2", "--", "ls", "--over"],
        "bench scaling --over": ["bench", "scaling", "--oversubscribe"],
        "bench data --over": ["bench", "data", "--over"],
        "ckpt export --what av": ["ckpt", "export", "--what", "average"],
        "ckpt import --what av": ["ckpt", "import", "--what", "av"],
        "ckpt verify --pref": ["ckpt", "verify", "--pref"],
        "bogus --standa": ["bogus", "--standa"],
        "--vers": ["--version"],
        "run -n 2 ls --standa": ["run", "-n", "2", "ls", "--standa"],
        "run --standalone ls --standa": ["run", "--standalone", "ls", "--standa"],
        "train --standa": ["train", "--standa"],
        "run --on-stall=rep": ["run", "--on-stall=report"],
        "run --no-pre": ["run", "--no-prefix"],
    }

    def test_bash(self):
        self.check("bash", {**self.COMMON, **self.OTHERS})

    def test_zsh(self):
        self.check("zsh", {**self.COMMON, **self.OTHERS})

    def test_zsh_from_a_folder_of_fpath(self):
        self.check("zsh", {**self.COMMON, **self.OTHERS}, READ_BY_FPATH)

    def test_tcsh(self):
        self.check("tcsh", {**self.COMMON, "run --on-stall=rep": ["run", "--on-stall=report"]})

    def test_bash_lists_every_flag_of_the_help(self):
        script = script_of("bash")
        for command, least in {"run": 60, "train mnist": 100, "ckpt diff": 5, "slurm": 20}.items():
            with self.subTest(command=command):
                text = subprocess.run([LOCKSTEP, *command.split(), "--help"], check=True, text=True,
                                      capture_output=True).stdout
                words = {flag for line in text.splitlines() if line.startswith("  -")
                         for flag in line.split()[0].replace("{false}", "").split(",")}
                self.assertGreater(len(words), least)
                offered = script[script.index(f"'{command}:-') list='"):].split("'")[3].split()
                self.assertEqual({word for word in words if "_" not in word} - set(offered), set())
                self.assertFalse([word for word in offered if "_" in word])

    def test_the_flag_of_run_prints_the_same_script(self):
        for shell in SHELLS:
            printed = subprocess.run([LOCKSTEP, "run", "--print-completion", shell], check=True, text=True,
                                     capture_output=True).stdout
            self.assertEqual(printed, script_of(shell))


if __name__ == "__main__":
    unittest.main()
