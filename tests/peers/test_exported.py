"""Models that torch.export saved, trained by Lockstep, compared with the same models in eager PyTorch, bit for bit
on the CPU: losses and weights on one rank and on two, and predictions."""

import json
import os
import pathlib
import subprocess
import sys

import numpy
import pytest
import torch
from safetensors.torch import load_file

PROGRAMS = pathlib.Path(__file__).parent / "programs"
sys.path.insert(0, str(PROGRAMS))

import exported_models  # noqa: E402

SEED = 3
STEPS = int(os.environ.get("LOCKSTEP_EXPORTED_STEPS", "4"))


def write_cases(folder, **common):
    files = []
    for name, (_, spec) in exported_models.MODELS.items():
        (folder / name).mkdir(parents=True)
        files.append(folder / name / "case.json")
        files[-1].write_text(json.dumps({"model": name, "seed": SEED, "steps": STEPS, **spec, **common}))
    return files


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A folder with NAME.pt2 for each model, with the weights that the seed gives."""
    folder = tmp_path_factory.mktemp("exported")
    for name, (make, spec) in exported_models.MODELS.items():
        torch.manual_seed(SEED)
        torch.export.save(exported_models.export(spec, make()), folder / f"{name}.pt2")
    return folder


@pytest.fixture(scope="module", params=[1, 2], ids=["one_rank", "two_ranks"])
def curves(request, tmp_path_factory, exported, bin_folder):
    ranks = request.param
    folder = tmp_path_factory.mktemp("curves")
    ours, peer = write_cases(folder / "ours", ranks=ranks), write_cases(folder / "pytorch", ranks=ranks)
    for file in ours:
        (file.parent / "model.pt2").symlink_to(exported / f"{file.parent.name}.pt2")
    environment = dict(os.environ, OMP_NUM_THREADS="1")
    subprocess.run([bin_folder / "test" / "exported_training", *ours], check=True, timeout=600, env=environment)
    processes = [subprocess.Popen([sys.executable, PROGRAMS / "exported_training.py", *peer],
                                  env=dict(environment, WORLD_SIZE=str(ranks), RANK=str(rank),
                                           STORE_FILE=str(folder / "store"))) for rank in range(ranks)]
    try:
        assert [process.wait(timeout=600) for process in processes] == [0] * ranks
    finally:
        for process in processes:
            process.kill()
    return ranks, folder / "ours", folder / "pytorch"


@pytest.fixture(scope="module")
def bin_folder():
    return pathlib.Path(os.environ["LOCKSTEP_BIN_DIR"])


@pytest.mark.parametrize("name", exported_models.MODELS)
def test_losses_and_weights_have_the_bits_of_eager_pytorch(curves, name):
    ranks, ours, peer = curves
    for rank in range(ranks):
        expected = json.loads((peer / name / f"losses.{rank}.json").read_text())
        assert len(set(expected)) == STEPS
        assert json.loads((ours / name / f"losses.{rank}.json").read_text()) == expected
    weights = torch.load(ours / name / "weights.pt", weights_only=True)
    expected = torch.load(peer / name / "weights.pt", weights_only=True)
    assert list(weights) == list(expected)
    for key, tensor in expected.items():
        assert weights[key].dtype == tensor.dtype and torch.equal(weights[key], tensor), key
    exported_models.MODELS[name][0]().load_state_dict(weights)  # strict
    assert torch.equal(load_file(ours / name / "prediction.safetensors")["output"],
                       load_file(peer / name / "prediction.safetensors")["output"])


def run_command(*words, status=0):
    command = [pathlib.Path(os.environ["LOCKSTEP_BIN_DIR"]) / "lockstep", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False,
                          env=dict(os.environ, OMP_NUM_THREADS="1", LOCKSTEP_COMPUTE_SETUP="cpu"))
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """A folder with inputs and targets of the MLP as NumPy writes them."""
    folder = tmp_path_factory.mktemp("table")
    inputs = torch.randn(96, 20, generator=torch.Generator().manual_seed(5))
    numpy.save(folder / "x.npy", inputs.numpy())
    numpy.save(folder / "y.npy", inputs[:, :10].argmax(1).numpy())
    return folder


def train_by_command(exported, table, folder, *flags):
    run_command("train", exported / "mlp.pt2", "--inputs", table / "x.npy", "--targets", table / "y.npy", "--loss",
                "cross_entropy", "--epochs", "2", "--batch-size", "16", "--lr", "0.01", "--seed", "9", "--tracking_tool", "none",
                "--run-dir", folder / "run", "--save_state_dict", folder / "weights.pt", *flags)
    return torch.load(folder / "weights.pt", weights_only=True)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_the_command_trains_with_the_bits_of_eager_pytorch(exported, table, tmp_path, optimizer):
    weights = train_by_command(exported, table, tmp_path, "--optimizer", optimizer)
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    model = exported_models.Mlp()
    inputs, classes = (torch.from_numpy(numpy.load(table / name)) for name in ("x.npy", "y.npy"))
    data = torch.utils.data.TensorDataset(inputs, classes)
    sampler = torch.utils.data.DistributedSampler(data, num_replicas=1, rank=0, seed=9)
    steps = (torch.optim.SGD(model.parameters(), lr=0.01) if optimizer == "sgd" else
             torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0, fused=True))
    torch.manual_seed(9)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        indices = list(sampler)
        for first in range(0, len(indices), 16):
            batch = indices[first:first + 16]
            steps.zero_grad()
            torch.nn.functional.cross_entropy(model(inputs[batch]), classes[batch]).backward()
            steps.step()
    for name, tensor in model.state_dict().items():
        assert torch.equal(weights[name], tensor), name


def test_every_stage_of_zero_ends_with_the_same_bits(exported, table, tmp_path):
    expected = None
    for stage in range(4):
        (tmp_path / str(stage)).mkdir()
        weights = train_by_command(exported, table, tmp_path / str(stage), "--nprocs", "2", "--optimizer", "sgd", "--momentum",
                                   "0.9", "--zero_stage", str(stage))
        expected = expected or weights
        for name, tensor in expected.items():
            assert torch.equal(weights[name], tensor), (stage, name)


def test_a_model_computes_its_own_loss(table, tmp_path):
    class Own(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(20, 10)

        def forward(self, x, y):
            scores = self.layer(x)
            return {"loss": torch.nn.functional.cross_entropy(scores, y), "scores": scores}

    batch = torch.export.Dim("batch", min=1, max=64)
    program = torch.export.export(Own(), (torch.ones(4, 20), torch.zeros(4, dtype=torch.long)),
                                  dynamic_shapes=({0: batch}, {0: batch}))
    torch.export.save(program, tmp_path / "own.pt2")
    printed = run_command("train", tmp_path / "own.pt2", "--inputs", table / "x.npy", "--targets", table / "y.npy", "--loss",
                          "output:loss", "--prediction", "scores", "--metrics", "accuracy", "--epochs", "2", "--tracking_tool",
                          "none", "--run-dir", tmp_path / "run")
    assert "Train_Accuracy" in printed
    assert "the model has no output 'lose': loss, scores" in run_command(
        "train", tmp_path / "own.pt2", "--inputs", table / "x.npy", "--targets", table / "y.npy", "--loss", "output:lose",
        status=2)


def test_inspect_lists_inputs_weights_and_operators(exported):
    facts = json.loads(run_command("ckpt", "inspect", exported / "mlp.pt2", "--json"))
    assert facts["kind"] == "exported model" and facts["supported"]
    assert facts["inputs"] == {"x": "float32 [1 to 64, 20]"} and facts["outputs"] == [""]
    assert {"name": "torch.ops.aten.linear.default", "count": 3, "supported": True} in facts["operators"]
    model = exported_models.Mlp()
    assert {row["name"]: tuple(row["shape"]) for row in facts["tensors"]} == {
        name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
