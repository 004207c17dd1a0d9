"""Recipes and their parts, compared with PyTorch and torchvision on the same machine."""

import json
import pathlib
import random
import re
import statistics
import subprocess
import tempfile

from run import BIN, PEER_PYTHON, ROOT, BenchError, Command, Row, gpu_is_there

PEERS = ROOT / "bench" / "peers"
RUNS = pathlib.Path(tempfile.gettempdir()) / "lockstep-bench-runs"
FASHION_MNIST = "/usr/share/datasets/fashion-mnist"  # Debian's package


def images_per_second(unit):
    """Images per second of one thread, from bytes in memory to float32 batches."""
    argv = [str(BIN / "lockstep"), "bench", "data", "--images", "cifar", "--threads", "1", "--repeats", "3", "--json"]
    done = subprocess.run(argv, text=True, capture_output=True, timeout=300)
    if done.returncode != 0:
        raise BenchError(done.stderr)
    return json.loads(done.stdout)["rows"][0]["images_per_s_per_thread"]


def fashion_mnist_epoch():
    """Seconds from the start of the program to its end: reading the data, one epoch, the test set."""
    ours = [BIN / "lockstep", "train", "fashion-mnist", "--nprocs", "2", "--compute-setup", "cpu", "--epochs", "1",
            "--progress", "none", "--root-folder", RUNS]
    return Row("Fashion-MNIST epoch on two CPU ranks, start to end, against PyTorch DDP and torchvision", "s",
               ours=Command(ours, wall_clock=True),
               peer=Command([PEER_PYTHON, PEERS / "fashion_mnist.py", FASHION_MNIST], wall_clock=True),
               floor=1.5, repeat=1, warm_up=0)


def accuracy_after_14_epochs(recipe, floor):
    """Accuracy on the whole test set, with two ranks. MNIST is searched where recipes search: data/, or LOCKSTEP_DATA."""
    argv = [str(BIN / "lockstep"), "train", recipe, "--nprocs", "2", "--backend", "gloo", "--epochs", "14",
            "--progress", "none", "--root-folder", str(RUNS)]

    def measure(unit):
        done = subprocess.run(argv, text=True, capture_output=True, timeout=3600)
        found = re.findall(r"Accuracy: (\d+)/(\d+)", done.stdout)
        if done.returncode != 0 or not found:
            raise BenchError(done.stderr)
        correct, samples = map(int, found[-1])
        return correct / samples

    return Row(f"{recipe}: accuracy after 14 epochs on two ranks", "of 1", ours=measure, reference=floor,
               higher_is_better=True, floor=1, repeat=1, warm_up=0)


def gpt_tokens_per_second(unit):
    """Of the recipe as users run it, after the first ten steps."""
    argv = [str(BIN / "lockstep"), "train", "gpt", "--compute-setup", "cpu", "--epochs", "1", "--max-batches", "70",
            "--val-every", "0", "--no-save-model", "--progress", "none", "--tracking-tool", "none", "--root-folder",
            str(RUNS)]
    done = subprocess.run(argv, text=True, capture_output=True, timeout=300)
    rates = [float(rate) for rate in re.findall(r"^Step \d+0/.* (\d+) tokens/s", done.stdout, re.MULTILINE)]
    if done.returncode != 0 or len(rates) != 7:
        raise BenchError(done.stderr)
    return statistics.median(rates[1:])


def gpu_steps(batch, floor):
    """Both sides try the algorithms of each convolution and use the fastest, as trainings of this size do."""
    return Row(f"GPU: cifar100 training step, bf16, batch {batch}, against PyTorch eager", "img/s",
               ours=Command([BIN / "bench" / "gpu_steps", str(batch), "bf16", "graph"]),
               peer=Command([PEER_PYTHON, PEERS / "gpu_steps.py", str(batch), "bf16"]), higher_is_better=True,
               floor=floor, repeat=3)


def noise_like_cifar100(folder):
    """Writes files with the format and size of CIFAR-100; the time does not depend on the contents of the images."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, images in (("train.bin", 50000), ("test.bin", 10000)):
        records = (bytes([random.randrange(20), random.randrange(100)]) + random.randbytes(3072) for _ in range(images))
        (folder / name).write_bytes(b"".join(records))
    return folder


def whole_run(epochs, batch):
    """Compares the whole run of the recipe with its steps alone: training steps, and steps of the test after each epoch."""

    def start_to_end(unit):
        data = noise_like_cifar100(RUNS / "cifar-100-binary")
        return Command([BIN / "lockstep", "train", "cifar100", "--data", data, "--epochs", str(epochs), "--batch-size",
                        str(batch), "--precision", "fp16", "--cuda-graph", "--cudnn-benchmark", "--target-accuracy",
                        "1", "--patience", "0", "--progress", "none", "--root-folder", RUNS], wall_clock=True,
                       timeout_s=1200)(unit)

    def steps_alone(unit):
        images_per_s = [Command([BIN / "bench" / "gpu_steps", str(size), "fp16", how])("img/s")
                        for size, how in ((batch, "graph"), (500, "validation"))]
        return epochs * (50000 // batch * batch / images_per_s[0] + 10000 / images_per_s[1])

    return Row(f"GPU: cifar100, {epochs} epochs of batch {batch} from start to end, against their steps alone", "s",
               ours=start_to_end, peer=steps_alone, floor=round(1 / 1.05, 3), repeat=1, warm_up=0)


def gpu_rows():
    return [gpu_steps(32, 3), gpu_steps(64, 2), gpu_steps(256, 1), gpu_steps(1024, 1), whole_run(100, 1024)]


def rows():
    return (gpu_rows() if gpu_is_there() else []) + [
        fashion_mnist_epoch(),
        accuracy_after_14_epochs("fashion-mnist", 0.925),
        # The last thousandth depends on the seed, and a seed gives other numbers on another device: docs/results.md.
        accuracy_after_14_epochs("mnist", 0.992),
        Row("CIFAR augmentation a core, against torchvision", "images/s", ours=images_per_second,
            peer=Command([PEER_PYTHON, PEERS / "torchvision_images.py"]), higher_is_better=True, floor=15, repeat=3),
        Row("gpt --model tiny on the CPU, against PyTorch eager", "tokens/s", ours=gpt_tokens_per_second,
            peer=Command([PEER_PYTHON, PEERS / "gpt_steps.py"]), higher_is_better=True, floor=1, repeat=3),
    ]
