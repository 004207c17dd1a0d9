"""The Python blocks of the pages, as they are printed."""

import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "consumer" / "docs"))
import blocks

PYTHON = [block for block in blocks.read_all() if block.language == "python"]


@pytest.mark.parametrize("block", PYTHON, ids=lambda block: block.place)
def test_the_block_runs_as_it_is_printed(block, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    names = {"__file__": str(block.context_file)}
    exec(compile(block.context_file.read_text(), block.context_file, "exec"), names)
    # Errors name the page and its line.
    exec(compile("\n" * block.line + block.text, block.page, "exec"), names)
    names["check"]()
