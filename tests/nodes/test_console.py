"""Output of `lockstep run` on a terminal, and plain text without a terminal."""

import errno
import os
import pathlib
import pty
import re
import subprocess

import pytest

# Rank 1 waits: if it failed at once, rank 0 could be ended before it prints anything.
TALK = ('echo "out of $RANK"; echo "err of $RANK" >&2; '
        'if [ "$RANK" = 0 ]; then touch "$SAID"; else until [ -e "$SAID" ]; do sleep 0.01; done; fi; exit "$STATUS"')


def command(folder, *flags, status=0):
    binary = pathlib.Path(os.environ["LOCKSTEP_BIN_DIR"]) / "lockstep"
    return [str(binary), "run", "-n", "2", *flags, "env", f"STATUS={status}", f"SAID={folder}/said", "sh", "-c", TALK]


def environment(**changes):
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "PET_", "LOCKSTEP_")) and k != "NO_COLOR"}
    return {**kept, "TERM": "xterm", **changes}


def on_terminal(command, **changes):
    """Returns what the command writes to a terminal, and its exit status."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs, env=environment(**changes))
    os.close(theirs)
    shown = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError as error:  # the other end is closed
            assert error.errno == errno.EIO
            break
        shown += part
    os.close(ours)
    return shown.decode().replace("\r\n", "\n"), process.wait()


def last_picture(shown):
    """The lines that remain on the screen, without erased and overwritten ones."""
    lines = []
    for line in shown.split("\n"):
        line = line.rpartition("\x1b[K")[2]
        lines.append(re.sub(r"\x1b\[[\d;]*m", "", line).rpartition("\r")[2])
    return lines


def test_terminal_has_colours_and_a_status_line(tmp_path):
    shown, status = on_terminal(command(tmp_path, "--max-restarts", "1"))
    assert status == 0
    assert "\x1b[36m[default0]:\x1b[0mout of 0\n" in shown
    assert "\x1b[32m[default1]:\x1b[0merr of 1\n" in shown
    assert re.search(r"\x1b\[2m\[run\] 0:\d\d, (starting|2 ranks on 1 node, restart 0 of 1)\x1b\[0m\r", shown)
    picture = [line for line in last_picture(shown) if "OMP_NUM_THREADS" not in line]
    assert sorted(picture) == ["", "[default0]:err of 0", "[default0]:out of 0", "[default1]:err of 1",
                               "[default1]:out of 1"], "nothing of the status line stays"


def test_failure_is_red_on_a_terminal(tmp_path):
    shown, status = on_terminal(command(tmp_path, status=3))
    assert status == 3
    assert re.search(r"\x1b\[1;31m\[run\] rank \d .* failed first: exit code 3\x1b\[0m\n", shown)


@pytest.mark.parametrize("changes", [{"NO_COLOR": "1"}, {"TERM": "dumb"}], ids=["NO_COLOR", "dumb"])
def test_terminal_without_colours_gets_no_escape_codes(tmp_path, changes):
    shown, status = on_terminal(command(tmp_path, status=3), **changes)
    assert status == 3
    assert "[default0]:out of 0\n" in shown and "failed first" in shown
    assert "\x1b" not in shown and "\r" not in shown


def test_quiet_has_no_status_line(tmp_path):
    shown, _ = on_terminal(command(tmp_path, "--quiet"))
    assert "[run]" not in shown and "\x1b[K" not in shown


def test_single_rank_has_the_terminal_for_itself(tmp_path):
    """Its output is passed on unchanged."""
    shown, _ = on_terminal([*command(tmp_path)[:2], "printf", "50%%\r100%%"])
    assert shown == "50%\r100%"


def test_pipe_gets_plain_text(tmp_path):
    done = subprocess.run(command(tmp_path, status=3), text=True, capture_output=True, env=environment())
    assert done.returncode == 3
    assert "\x1b" not in done.stdout + done.stderr and "\r" not in done.stdout + done.stderr
    assert "[default0]:out of 0\n" in done.stdout
