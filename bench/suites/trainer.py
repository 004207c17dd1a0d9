"""The trainer's own costs, against PyTorch 2.11 on the same machine."""

import pathlib
import tempfile

from run import BIN, PEER_PYTHON, ROOT, Command, Row

PEERS = ROOT / "bench" / "peers"
STATES = pathlib.Path(tempfile.gettempdir()) / "lockstep-bench-checkpoint"


def checkpoint(what, name, floor):
    """A state of 1 GB; both sides read what their own save wrote a row before."""
    STATES.mkdir(exist_ok=True)
    return Row(
        name, "s",
        ours=Command([BIN / "bench" / "checkpoint_io", what, STATES / "ours"]),
        peer=Command([PEER_PYTHON, PEERS / "checkpoint_io.py", what, STATES / "peer.pt"]),
        floor=floor)


def rows():
    return [
        checkpoint("save-synced", "save 1 GB with checksums and fsync, against torch.save and fsync", 1.5),
        checkpoint("save", "save 1 GB with checksums, against torch.save", 1.5),
        checkpoint("load", "load 1 GB and check it, into new tensors, against torch.load", 1.5),
        checkpoint("resume", "load 1 GB and check it, into a model, against torch.load and copy", 1.5),
    ]
