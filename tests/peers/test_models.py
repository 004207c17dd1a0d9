"""The models compared with their Python originals, bit for bit on the CPU: initial weights, losses of
30 steps with the recipe's optimizer on one rank and on two, predictions."""

import json
import os
import pathlib
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file
from torchvision.models import VisionTransformer

PROGRAMS = pathlib.Path(__file__).parent / "programs"
SEED = 7

PRINCETON = {"model": "princeton_cnn", "options": {}, "optimizer": "adadelta", "batch": [8, 1, 28, 28], "classes": 10}
RESNET = {"model": "wide_resnet", "options": {}, "optimizer": "sgd", "batch": [1, 3, 32, 32], "classes": 100}
VIT = {"model": "vision_transformer", "options": {"preset": "tiny", "image_size": 32, "patch_size": 8, "classes": 10},
       "optimizer": "adam", "batch": [2, 3, 32, 32], "classes": 10}
CURVES = {
    "princeton_cnn": PRINCETON,
    "wide_resnet": RESNET,
    "wide_resnet_channels_last": {**RESNET, "options": {"widen_factor": 2}, "batch": [4, 3, 32, 32],
                                  "channels_last": True},
    "vision_transformer": VIT,
    # With an even number of heads, evaluation uses another kernel.
    "vision_transformer_dropout": {**VIT, "options": {**VIT["options"], "layers": 2, "heads": 4, "dropout": 0.1,
                                                      "attention_dropout": 0.2}},
    "mlp": {"model": "mlp", "options": {"sizes": [4, 16, 3]}, "optimizer": "sgd", "batch": [16, 4], "classes": 3},
}


def write_cases(folder, cases, **common):
    files = []
    for name, case in cases.items():
        (folder / name).mkdir()
        files.append(folder / name / "case.json")
        files[-1].write_text(json.dumps({"seed": SEED, **case, **common}))
    return files


def run_ours(folder, cases, **common):
    """Runs the cases with Lockstep, and returns the folder of the results."""
    (folder / "ours").mkdir()
    subprocess.run([pathlib.Path(os.environ["LOCKSTEP_BIN_DIR"]) / "test" / "model_training",
                    *write_cases(folder / "ours", cases, **common)],
                   check=True, timeout=600, env=dict(os.environ, OMP_NUM_THREADS="1"))
    return folder / "ours"


def run_pytorch(folder, cases, *, ranks, **common):
    """Runs the cases with PyTorch, and returns the folder of the results."""
    (folder / "pytorch").mkdir()
    files = write_cases(folder / "pytorch", cases, ranks=ranks, **common)
    environment = dict(os.environ, OMP_NUM_THREADS="1", WORLD_SIZE=str(ranks), STORE_FILE=str(folder / "store"))
    processes = [subprocess.Popen([sys.executable, PROGRAMS / "model_training.py", *files],
                                  env=dict(environment, RANK=str(rank))) for rank in range(ranks)]
    try:
        assert [process.wait(timeout=600) for process in processes] == [0] * ranks
    finally:
        for process in processes:
            process.kill()
    return folder / "pytorch"


def run_both(folder, cases, **common):
    return run_ours(folder, cases, **common), run_pytorch(folder, cases, **common)


def assert_same_tensors(ours, peer):
    a, b = load_file(ours), load_file(peer)
    assert sorted(a) == sorted(b)
    for name, tensor in b.items():
        assert a[name].dtype == tensor.dtype and a[name].shape == tensor.shape, name
        assert torch.equal(a[name], tensor), name


@pytest.fixture(scope="module", params=[1, 2], ids=["one_rank", "two_ranks"])
def curves(request, tmp_path_factory):
    return (request.param, *run_both(tmp_path_factory.mktemp("curves"), CURVES, ranks=request.param, steps=30))


@pytest.mark.parametrize("name", CURVES)
def test_thirty_steps_have_the_same_losses_and_end_with_the_same_bits(curves, name):
    ranks, ours, peer = curves
    for rank in range(ranks):
        expected = json.loads((peer / name / f"losses.{rank}.json").read_text())
        assert len(set(expected)) == 30
        assert json.loads((ours / name / f"losses.{rank}.json").read_text()) == expected
    assert_same_tensors(ours / name / "weights.safetensors", peer / name / "weights.safetensors")
    assert_same_tensors(ours / name / "prediction.safetensors", peer / name / "prediction.safetensors")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The models at full size: their initial weights and predictions."""
    cases = {"princeton_cnn": PRINCETON,
             "wide_resnet": RESNET,
             "vit_b_16": {"model": "vision_transformer", "options": {}, "optimizer": "adam", "batch": [1, 3, 224, 224],
                          "classes": 1000}}
    return run_both(tmp_path_factory.mktemp("whole"), cases, ranks=1, steps=0)


@pytest.mark.parametrize("name, parameters", [("princeton_cnn", 1_199_882), ("wide_resnet", 17_175_444),
                                              ("vit_b_16", 86_567_656)])
def test_a_seed_gives_the_weights_that_it_gives_in_python(whole, name, parameters):
    ours, peer = whole
    weights = load_file(ours / name / "weights.safetensors")
    buffers = ("running_mean", "running_var", "num_batches_tracked")
    assert sum(t.numel() for n, t in weights.items() if not n.endswith(buffers)) == parameters
    assert_same_tensors(ours / name / "weights.safetensors", peer / name / "weights.safetensors")
    assert_same_tensors(ours / name / "prediction.safetensors", peer / name / "prediction.safetensors")


def published_names(weights):
    """Converts names to the older ones in the files that torchvision publishes."""
    return {name.replace(".mlp.0.", ".mlp.linear_1.").replace(".mlp.3.", ".mlp.linear_2."): tensor
            for name, tensor in weights.items()}


@pytest.mark.parametrize("kind", ["state_dict", "safetensors", "parallel", "published"])
def test_a_torchvision_file_loads_and_predicts_the_same_bits(tmp_path, kind):
    options = {"image_size": 64, "layers": 2, "classes": 1000}  # vit_b_16 with fewer layers
    torch.manual_seed(SEED)
    model = VisionTransformer(image_size=64, patch_size=16, num_layers=2, num_heads=12, hidden_dim=768, mlp_dim=3072)
    torch.nn.init.normal_(model.heads.head.weight, std=0.02)  # its initial weights are zeros
    weights = model.state_dict()
    file = tmp_path / ("weights.safetensors" if kind == "safetensors" else "weights.pth")
    if kind == "safetensors":
        save_file(weights, file)
    elif kind == "parallel":
        torch.save({f"module.{name}": tensor for name, tensor in weights.items()}, file)
    else:
        torch.save(published_names(weights) if kind == "published" else weights, file)
    case = {"model": "vision_transformer", "options": options, "optimizer": "adam", "batch": [3, 3, 64, 64],
            "classes": 1000, "weights": str(file)}
    predicted = run_ours(tmp_path, {"case": case}, ranks=1, steps=0) / "case" / "prediction.safetensors"
    inputs = torch.randn(case["batch"], generator=torch.Generator().manual_seed(999))
    torch.set_num_threads(1)
    model.eval()
    with torch.no_grad():
        expected = model(inputs)
    assert expected.abs().max() > 0.1
    assert torch.equal(load_file(predicted)["output"], expected)
