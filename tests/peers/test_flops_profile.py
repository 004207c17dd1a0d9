"""The counts of the engine's flops profiler, compared with DeepSpeed's on the same model in PyTorch."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

PROGRAMS = pathlib.Path(__file__).parent / "programs"

# A recipe's flags, the model in PyTorch and one batch.
MODELS = {
    "mnist": (["--batch-size", "3"], "PrincetonCnn()", "3, 1, 28, 28"),
    "cifar100": (["--batch-size", "2", "--patience", "0"], "WideResNet()", "2, 3, 32, 32"),
    "vit": (["--batch-size", "2", "--model", "tiny", "--image-size", "32", "--classes", "200", "--no-save-model"],
            'make_vision_transformer({"preset": "tiny", "image_size": 32, "classes": 200})', "2, 3, 32, 32"),
}

PEER = """
import torch
from deepspeed.profiling.flops_profiler import FlopsProfiler
from deepspeed.profiling.flops_profiler.profiler import macs_to_string, params_to_string
from model_training import PrincetonCnn, WideResNet, make_vision_transformer
model = {model}
model.train()
profiler = FlopsProfiler(model)
profiler.start_profile()
model(torch.ones({shape}))
profiler.stop_profile()
print("COUNTED", macs_to_string(profiler.get_total_macs()), "|", params_to_string(profiler.get_total_params()))
"""


def amount(text):
    """Parses an amount, so that 1.20 M equals 1.2 M."""
    number, unit = text.split()
    return float(number), unit


def line(page, name):
    found = [text for text in page.splitlines() if text.startswith(name + ":")]
    assert len(found) == 1, page
    return found[0].split(":")[1].strip()


@pytest.mark.parametrize("name", MODELS)
def test_counts_what_deepspeed_counts(bin_dir, tmp_path, name):
    flags, model, shape = MODELS[name]
    config = {"train_micro_batch_size_per_gpu": int(flags[1]),
              "optimizer": {"type": "SGD", "params": {"lr": 0.01}},
              "flops_profiler": {"enabled": True, "output_file": str(tmp_path / "page.txt")}}
    (tmp_path / "ds.json").write_text(json.dumps(config))
    environment = dict(os.environ, OMP_NUM_THREADS="1", DS_ACCELERATOR="cpu")
    subprocess.run([bin_dir / "lockstep", "train", name, "--data", "synthetic", *flags[2:], "--epochs", "1",
                    "--max-batches", "3", "--compute-setup", "cpu", "--run-dir", tmp_path / "run", "--val-every", "0",
                    "--deepspeed_config", tmp_path / "ds.json"], check=True, timeout=300, env=environment)
    page = (tmp_path / "page.txt").read_text()
    peer = subprocess.run([sys.executable, "-c", PEER.format(model=model, shape=shape)], check=True, timeout=300,
                          env=dict(environment, PYTHONPATH=str(PROGRAMS)), stdout=subprocess.PIPE, text=True).stdout
    counted = [text for text in peer.splitlines() if text.startswith("COUNTED")][0].removeprefix("COUNTED ")
    macs, params = (text.strip() for text in counted.split("|"))
    assert amount(line(page, "fwd MACs per rank")) == amount(macs)
    assert amount(line(page, "params of model")) == amount(params)
