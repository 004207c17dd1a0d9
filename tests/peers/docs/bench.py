"""Context of a suite of script/bench: measures both sides of its rows once."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "bench"))


def check():
    for row in rows():
        assert row.ours(row.unit) > 0 and row.peer(row.unit) > 0
