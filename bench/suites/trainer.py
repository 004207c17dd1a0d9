"""The overhead of the trainer, compared with PyTorch on the same machine."""

import pathlib
import tempfile

from run import BIN, PEER_PYTHON, ROOT, Command, Row

PEERS = ROOT / "bench" / "peers"
STATES = pathlib.Path(tempfile.gettempdir()) / "lockstep-bench-checkpoint"


def checkpoint(what, name, floor):
    """A state of 1 GB; each side reads what its own save wrote in the row before."""
    STATES.mkdir(exist_ok=True)
    return Row(
        name, "s",
        ours=Command([BIN / "bench" / "checkpoint_io", what, STATES / "ours"]),
        peer=Command([PEER_PYTHON, PEERS / "checkpoint_io.py", what, STATES / "peer.pt"]),
        floor=floor)


def cost(what, unit, name, limit, repeat):
    folder = pathlib.Path(tempfile.gettempdir()) / f"lockstep-bench-trainer-{what}"
    return Row(name, unit, ours=Command([BIN / "bench" / "trainer_costs", what, folder], timeout_s=900),
               reference=limit, floor=1, repeat=repeat, warm_up=0)


def rows():
    return [
        cost("step", "us", "trainer's own time a step over the bare loop, sine model", 10, 5),
        cost("checkpoint", "%", "what a checkpoint of 1 GB in the background adds to the 50 steps after it", 2, 1),
        checkpoint("save-synced", "save 1 GB with checksums and fsync, against torch.save and fsync", 1.5),
        checkpoint("save", "save 1 GB with checksums, against torch.save", 1.5),
        checkpoint("load", "load 1 GB and check it, into new tensors, against torch.load", 1.5),
        checkpoint("resume", "load 1 GB and check it, into a model, against torch.load and copy", 1.5),
        Row("bytes that each of 3 ranks reads, over its own ranges and the manifest", "x",
            ours=Command([BIN / "bench" / "checkpoint_io", "ranges", STATES / "ours"]), reference=1, floor=0.999,
            repeat=1, warm_up=0),
    ]
