"""What recipes are made of, against PyTorch 2.11 and torchvision 0.26 on the same machine."""

import json
import subprocess

from run import BIN, PEER_PYTHON, ROOT, BenchError, Command, Row

PEERS = ROOT / "bench" / "peers"


def images_per_second(unit):
    """Of one thread, from bytes in memory to float32 batches."""
    argv = [str(BIN / "lockstep"), "bench", "data", "--images", "cifar", "--threads", "1", "--repeats", "3", "--json"]
    done = subprocess.run(argv, text=True, capture_output=True, timeout=300)
    if done.returncode != 0:
        raise BenchError(done.stderr)
    return json.loads(done.stdout)["rows"][0]["images_per_s_per_thread"]


def rows():
    return [
        Row("CIFAR augmentation a core, against torchvision", "images/s", ours=images_per_second,
            peer=Command([PEER_PYTHON, PEERS / "torchvision_images.py"]), higher_is_better=True, floor=15, repeat=3),
    ]
