"""Models that torch.export saved, compared with the same models in eager PyTorch."""

import pathlib
import subprocess
import tempfile

from run import BIN, PEER_PYTHON, ROOT, BenchError, Command, Row

PEER = ROOT / "bench" / "peers" / "exported_steps.py"
PROGRAM = BIN / "bench" / "exported_steps"
FILES = pathlib.Path(tempfile.gettempdir()) / "lockstep-bench-exported"


def file_of(model):
    return FILES / f"{model}.pt2"


def with_file(model, command):
    """The measurement, after the file of the model was written."""

    def measure(unit):
        FILES.mkdir(exist_ok=True)
        if not file_of(model).exists():
            done = subprocess.run([PEER_PYTHON, PEER, "export", model, file_of(model)], text=True, capture_output=True, timeout=300)
            if done.returncode != 0:
                raise BenchError(done.stderr[-2000:])
        return command(unit)

    return measure


def steps(model, what, shapes, count, floor):
    return Row(f"{what}: training steps on two cores, against PyTorch eager", "steps/s",
               ours=with_file(model, Command([PROGRAM, "train", file_of(model), str(count), *shapes])),
               peer=Command([PEER_PYTHON, PEER, "train", model, str(count)]), higher_is_better=True, floor=floor)


def load(model, what, floor):
    return Row(f"load {what}, against torch.export.load", "s",
               ours=with_file(model, Command([PROGRAM, "load", file_of(model)])),
               peer=Command([PEER_PYTHON, PEER, "load", file_of(model)]), floor=floor)


def rows():
    return [
        steps("resnet18", "resnet18", ["8x3x64x64"], 20, 1.0),
        steps("mlp", "MLP of three layers", ["32x16"], 3000, 1.5),
        steps("lstm_cell", "LSTM cell", ["16x32", "16x64", "16x64"], 3000, 1.5),
        load("resnet18", "resnet18", 1.0),
        load("vit_b_16", "vit_b_16, 340 MB", 5),
        Row("a node of a program, over a LibTorch module by hand", "us",
            ours=with_file("chain", Command([PROGRAM, "nodes", file_of("chain")])), reference=1, floor=1),
    ]
