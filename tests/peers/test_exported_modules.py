"""Exported models by Python's modules: recomputed and sharded by blocks they end with the bits of a training without."""

import json
import os
import pathlib
import subprocess
import sys

import numpy
import pytest
import torch

PROGRAMS = pathlib.Path(__file__).parent / "programs"
sys.path.insert(0, str(PROGRAMS))

import exported_models  # noqa: E402

SEED = 3
BIN = pathlib.Path(os.environ["LOCKSTEP_BIN_DIR"])
ENVIRONMENT = dict(os.environ, OMP_NUM_THREADS="1", LOCKSTEP_COMPUTE_SETUP="cpu")


def save_model(name, folder):
    make, spec = exported_models.MODELS[name]
    torch.manual_seed(SEED)
    torch.export.save(exported_models.export(spec, make()), folder / f"{name}.pt2")
    return folder / f"{name}.pt2"


# Blocks with dropout and tied weights around them; batch norm, in place; stochastic depth; views and concatenations.
@pytest.mark.parametrize("name", ["gpt2", "resnet18", "swin", "unet"])
def test_recomputing_blocks_gives_the_bits_of_a_training_without(tmp_path, name):
    file = save_model(name, tmp_path)
    cases = []
    for how, pattern in {"plain": "", "again": "auto"}.items():
        (tmp_path / how).mkdir()
        (tmp_path / how / "model.pt2").symlink_to(file)
        cases.append(tmp_path / how / "case.json")
        cases[-1].write_text(json.dumps({"model": name, "seed": SEED, "steps": 2, "ranks": 1, "optimizer": "sgd", "recompute_by": pattern,
                                         **exported_models.MODELS[name][1]}))
    subprocess.run([BIN / "test" / "exported_training", *cases], check=True, timeout=600, env=ENVIRONMENT)
    losses = [json.loads((tmp_path / how / "losses.0.json").read_text()) for how in ("plain", "again")]
    assert losses[0] == losses[1] and len(set(losses[0])) == 2
    weights, expected = (torch.load(tmp_path / how / "weights.pt", weights_only=True) for how in ("again", "plain"))
    assert list(weights) == list(expected)
    for key, tensor in expected.items():
        assert torch.equal(weights[key], tensor), key


def test_modules_one_after_the_other_end_with_the_same_bits(tmp_path):
    file = save_model("mlp", tmp_path)
    inputs = torch.randn(64, 20, generator=torch.Generator().manual_seed(5))
    numpy.save(tmp_path / "x.npy", inputs.numpy())
    numpy.save(tmp_path / "y.npy", inputs[:, :10].argmax(1).numpy())

    def train(folder, *flags):
        folder.mkdir()
        command = [BIN / "lockstep", "train", file, "--inputs", tmp_path / "x.npy", "--targets", tmp_path / "y.npy", "--loss",
                   "cross_entropy", "--epochs", "2", "--batch-size", "16", "--seed", "9", "--tracking_tool", "none", "--nprocs", "2",
                   "--optimizer", "sgd", "--momentum", "0.9", "--zero_stage", "3", "--zero_persistence_threshold", "0",
                   "--run-dir", folder / "run", "--save_state_dict", folder / "weights.pt", *flags]
        return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=ENVIRONMENT)

    expected = None
    for number, flags in enumerate([["--shard-by", "none"], ["--recompute-by", "auto"],
                                    ["--shard-by", "layers.*", "--recompute-by", "layers"]]):
        done = train(tmp_path / str(number), *flags)
        assert done.returncode == 0, done.stdout + done.stderr
        weights = torch.load(tmp_path / str(number) / "weights.pt", weights_only=True)
        expected = expected or weights
        for name, tensor in expected.items():
            assert torch.equal(weights[name], tensor), (flags, name)
    refused = train(tmp_path / "refused", "--shard-by", "block.*")
    assert refused.returncode == 2
    assert "'block.*' matches no module; its modules are: layers, layers.0, " in refused.stderr
