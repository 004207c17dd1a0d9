"""`lockstep train NAME`, as users run it, compared with the same training in PyTorch: files of data,
order, augmentation, dropout, schedule and optimizer. The losses of 30 steps and the weights
after them have the same bits on the CPU, on one rank and on two."""

import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

PROGRAM = pathlib.Path(__file__).parent / "programs" / "recipe_training.py"
SEED = 7
STEPS = 30
GAMMA = 0.9


def pictures(count, height, width, channels, classes):
    random = np.random.default_rng(SEED)
    return (random.integers(0, 256, (count, height, width, channels), dtype=np.uint8),
            random.integers(0, classes, count, dtype=np.uint8))


def write_idx(folder):
    """Writes MNIST's files, and returns the training images and labels."""
    folder.mkdir()
    for name, count in (("t10k", 4), ("train", 64)):
        images, labels = pictures(count, 28, 28, 1, 10)
        head = b"".join(size.to_bytes(4, "big") for size in (count, 28, 28))
        (folder / f"{name}-images-idx3-ubyte").write_bytes(b"\0\0\x08\x03" + head + images.tobytes())
        (folder / f"{name}-labels-idx1-ubyte").write_bytes(b"\0\0\x08\x01" + head[:4] + labels.tobytes())
    return images, labels


def write_cifar(folder):
    (folder / "cifar-100-binary").mkdir(parents=True)
    for name, count in (("test", 4), ("train", 32)):
        images, labels = pictures(count, 32, 32, 3, 100)
        records = [bytes([0, label]) + image.transpose(2, 0, 1).tobytes() for image, label in zip(images, labels)]
        (folder / "cifar-100-binary" / f"{name}.bin").write_bytes(b"".join(records))
    return images, labels


def write_npy(folder):
    folder.mkdir()
    images, labels = pictures(40, 48, 48, 3, 10)
    np.save(folder / "images.npy", images)
    np.save(folder / "labels.npy", labels.astype(np.int64))
    return images, labels


CONTEXT = 32


def write_tokens(folder):
    """Writes a file of llm.c with a window for each sample of the steps, and returns the windows."""
    folder.mkdir()
    random = np.random.default_rng(SEED)
    tokens = random.integers(0, 100, 130 * CONTEXT + 1).astype(np.uint16)
    header = np.zeros(256, np.int32)
    header[:3] = 20240520, 1, len(tokens)
    (folder / "train.bin").write_bytes(header.tobytes() + tokens.tobytes())
    windows = np.lib.stride_tricks.sliding_window_view(tokens.astype(np.int64), CONTEXT + 1)[::CONTEXT]
    return windows[:, :-1], windows[:, 1:]


# For each recipe: how its data are written, the batch size of each rank, and further flags.
RECIPES = {
    "sine": (None, 16, []),
    "mnist": (write_idx, 8, ["--gamma", str(GAMMA)]),
    "fashion-mnist": (write_idx, 8, ["--gamma", str(GAMMA)]),
    "cifar100": (write_cifar, 2, ["--patience", "0"]),
    "vit": (write_npy, 2, ["--model", "tiny", "--image-size", "32", "--classes", "10", "--no-save-model"]),
    "gpt": (write_tokens, 2, ["--context", str(CONTEXT), "--vocabulary", "100", "--warmup-steps", "3", "--lr", "2e-3",
                              "--min-lr", "1e-4", "--no-save-model"]),
}


def train(bin_dir, folder, name, ranks):
    """Runs `lockstep train`, and returns the folder of the run."""
    write, batch_size, flags = RECIPES[name]
    run = folder / "run"
    data = ["--data", folder / "data"] if write else []
    if name == "gpt" and ranks > 1:
        # The norm of several ranks is that of flat buckets, and rounds differently from PyTorch's.
        flags = [*flags, "--clip-grad-norm", "0"]
    global_batch = batch_size * ranks if name == "cifar100" else batch_size
    subprocess.run([bin_dir / "lockstep", "train", name, *data, *flags, "--run-dir", run, "--nprocs", str(ranks),
                    "--compute-setup", "cpu", "--seed", str(SEED), "--epochs", str(STEPS), "--max-batches", "1",
                    "--batch-size", str(global_batch), "--val-every", "0", "--checkpoint-every", str(STEPS)],
                   check=True, timeout=900, cwd=folder, env=dict(os.environ, OMP_NUM_THREADS="1"))
    subprocess.run([bin_dir / "lockstep", "ckpt", "export", run, "--to", folder / "weights.safetensors"], check=True,
                   timeout=120, env=dict(os.environ, OMP_NUM_THREADS="1"))
    return run


def train_in_pytorch(folder, name, ranks, images, labels):
    """Trains with PyTorch, and returns the losses of each rank."""
    peer = folder / "peer"
    peer.mkdir()
    case = {"recipe": name, "seed": SEED, "steps": STEPS, "batch_size": RECIPES[name][1]}
    if images is not None:
        np.save(peer / "images.npy", images)
        np.save(peer / "labels.npy", labels)
        case |= {"images": str(peer / "images.npy"), "labels": str(peer / "labels.npy")}
    if "mnist" in name:
        case["gamma"] = GAMMA
    if name == "gpt" and ranks == 1:
        case["clip"] = 1.0
    (peer / "case.json").write_text(json.dumps(case))
    environment = dict(os.environ, OMP_NUM_THREADS="1", WORLD_SIZE=str(ranks), STORE_FILE=str(folder / "store"))
    processes = [subprocess.Popen([sys.executable, PROGRAM, peer / "case.json"], env=dict(environment, RANK=str(rank)))
                 for rank in range(ranks)]
    try:
        assert [process.wait(timeout=900) for process in processes] == [0] * ranks
    finally:
        for process in processes:
            process.kill()
    return [json.loads((peer / f"losses.{rank}.json").read_text()) for rank in range(ranks)]


@pytest.mark.parametrize("ranks", [1, 2], ids=["one_rank", "two_ranks"])
@pytest.mark.parametrize("name", RECIPES)
def test_thirty_steps_of_a_recipe_have_the_same_losses_and_weights(bin_dir, tmp_path, name, ranks):
    write, batch_size, _ = RECIPES[name]
    images, labels = write(tmp_path / "data") if write else (None, None)
    run = train(bin_dir, tmp_path, name, ranks)
    losses = train_in_pytorch(tmp_path, name, ranks, images, labels)
    # The command prints the mean loss of all ranks, in double precision.
    expected = [sum(loss * batch_size for loss in step) / (batch_size * ranks) for step in zip(*losses)]
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert len(set(expected)) == STEPS
    assert [line["train_loss"] for line in lines if "train_loss" in line] == expected
    ours, peer = load_file(tmp_path / "weights.safetensors"), load_file(tmp_path / "peer" / "weights.safetensors")
    assert sorted(ours) == sorted(peer)
    for tensor in peer:
        assert torch.equal(ours[tensor], peer[tensor]), tensor
