"""Tests the driver: two programs that print a number, and two that only run."""

import sys

from run import Command, Row


def _printing(value):
    return Command([sys.executable, "-c", f"print('noise'); print('{{\"value\": {value}, \"unit\": \"us\"}}')"])


def rows():
    start = Command([sys.executable, "-c", "pass"], wall_clock=True)
    start_and_import = Command([sys.executable, "-c", "import json, subprocess, argparse"], wall_clock=True)
    return [
        Row("a printed value", "us", ours=_printing(2), peer=_printing(10), floor=5, repeat=2, warm_up=0),
        Row("a run time", "s", ours=start, peer=start_and_import, floor=0, repeat=3),
    ]
