"""What recipes are made of, against PyTorch 2.11 and torchvision 0.26 on the same machine."""

import json
import pathlib
import shutil
import subprocess
import tempfile

from run import BIN, PEER_PYTHON, ROOT, BenchError, Command, Row

PEERS = ROOT / "bench" / "peers"
FASHION_MNIST = "/usr/share/datasets/fashion-mnist"  # Debian's package


def images_per_second(unit):
    """Of one thread, from bytes in memory to float32 batches."""
    argv = [str(BIN / "lockstep"), "bench", "data", "--images", "cifar", "--threads", "1", "--repeats", "3", "--json"]
    done = subprocess.run(argv, text=True, capture_output=True, timeout=300)
    if done.returncode != 0:
        raise BenchError(done.stderr)
    return json.loads(done.stdout)["rows"][0]["images_per_s_per_thread"]


def fashion_mnist_epoch():
    """From the start of the program to its end: reading the data, one epoch, the test set."""
    runs = pathlib.Path(tempfile.gettempdir()) / "lockstep-bench-runs"
    ours = [BIN / "lockstep", "train", "fashion-mnist", "--nprocs", "2", "--compute-setup", "cpu", "--epochs", "1",
            "--progress", "none", "--root-folder", runs]
    return Row("Fashion-MNIST epoch on two CPU ranks, start to end, against PyTorch DDP and torchvision", "s",
               ours=Command(ours, wall_clock=True),
               peer=Command([PEER_PYTHON, PEERS / "fashion_mnist.py", FASHION_MNIST], wall_clock=True),
               floor=1.5, repeat=1, warm_up=0)


def gpu_is_there():
    return shutil.which("nvidia-smi") is not None and subprocess.run(["nvidia-smi", "-L"]).returncode == 0


def gpu_steps(batch, floor):
    """Both try the algorithms of a convolution and keep the fastest, as trainings of this size do."""
    return Row(f"GPU: cifar100 training step, bf16, batch {batch}, against PyTorch eager", "img/s",
               ours=Command([BIN / "bench" / "gpu_steps", str(batch), "bf16", "graph"]),
               peer=Command([PEER_PYTHON, PEERS / "gpu_steps.py", str(batch), "bf16"]), higher_is_better=True,
               floor=floor, repeat=3)


def gpu_rows():
    return [gpu_steps(32, 3), gpu_steps(64, 2), gpu_steps(256, 1), gpu_steps(1024, 1)]


def rows():
    return (gpu_rows() if gpu_is_there() else []) + [
        fashion_mnist_epoch(),
        Row("CIFAR augmentation a core, against torchvision", "images/s", ours=images_per_second,
            peer=Command([PEER_PYTHON, PEERS / "torchvision_images.py"]), higher_is_better=True, floor=15, repeat=3),
    ]
