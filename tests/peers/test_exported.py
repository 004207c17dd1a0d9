"""Models that torch.export saved, trained by Lockstep, compared with the same models in eager PyTorch, bit for bit
on the CPU: losses and weights on one rank and on two, and predictions.

LOCKSTEP_EXPORTED_STEPS is the number of steps of each training; script/test --exported sets it to 100, and trains the whole
models of torchvision too."""

import json
import os
import pathlib
import subprocess
import sys

import numpy
import pytest
import torch
from safetensors.torch import load_file

from exported_command import run_command

PROGRAMS = pathlib.Path(__file__).parent / "programs"
sys.path.insert(0, str(PROGRAMS))

import exported_models  # noqa: E402

SEED = 3
STEPS = int(os.environ.get("LOCKSTEP_EXPORTED_STEPS", "4"))
MODELS = {name: spec for name, (_, spec) in exported_models.MODELS.items() if STEPS > 4 or not spec.get("whole")}
TIMEOUT_S = 300 + 200 * STEPS
# Each model with SGD, with Adam in one pass, and with the optimizers that it has besides.
ALL = ("sgd", "adam_fused", "adam") if STEPS > 4 else ("sgd", "adam_fused")
CASES = sorted({(name, optimizer) for name, spec in MODELS.items() for optimizer in (*ALL, *spec.get("optimizers", ()))})


def write_cases(folder, **common):
    files = []
    for name, optimizer in CASES:
        files.append(folder / f"{name}.{optimizer}" / "case.json")
        files[-1].parent.mkdir(parents=True)
        files[-1].write_text(json.dumps({"model": name, "optimizer": optimizer, "seed": SEED, "steps": STEPS, **MODELS[name], **common}))
    return files


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A folder with NAME.pt2 for each model, with the weights that the seed gives."""
    folder = tmp_path_factory.mktemp("exported")
    for name, spec in MODELS.items():
        torch.manual_seed(SEED)
        torch.export.save(exported_models.export(spec, exported_models.MODELS[name][0]()), folder / f"{name}.pt2")
    return folder


@pytest.fixture(scope="module", params=[1, 2], ids=["one_rank", "two_ranks"])
def curves(request, tmp_path_factory, exported, bin_folder):
    ranks = request.param
    folder = tmp_path_factory.mktemp("curves")
    ours, peer = write_cases(folder / "ours", ranks=ranks), write_cases(folder / "pytorch", ranks=ranks)
    for file in ours:
        (file.parent / "model.pt2").symlink_to(exported / f"{file.parent.stem}.pt2")
    environment = dict(os.environ, OMP_NUM_THREADS="1")
    subprocess.run([bin_folder / "test" / "exported_training", *ours], check=True, timeout=TIMEOUT_S, env=environment)
    processes = [subprocess.Popen([sys.executable, PROGRAMS / "exported_training.py", *peer],
                                  env=dict(environment, WORLD_SIZE=str(ranks), RANK=str(rank),
                                           STORE_FILE=str(folder / "store"))) for rank in range(ranks)]
    try:
        assert [process.wait(timeout=TIMEOUT_S) for process in processes] == [0] * ranks
    finally:
        for process in processes:
            process.kill()
    return ranks, folder / "ours", folder / "pytorch"


@pytest.fixture(scope="module")
def bin_folder():
    return pathlib.Path(os.environ["LOCKSTEP_BIN_DIR"])


@pytest.mark.parametrize("model, optimizer", CASES)
def test_losses_and_weights_have_the_bits_of_eager_pytorch(curves, model, optimizer):
    ranks, ours, peer = curves
    name = f"{model}.{optimizer}"
    for rank in range(ranks):
        expected = json.loads((peer / name / f"losses.{rank}.json").read_text())
        assert len(set(expected)) > STEPS // 2
        assert json.loads((ours / name / f"losses.{rank}.json").read_text()) == expected
    weights = torch.load(ours / name / "weights.pt", weights_only=True)
    expected = torch.load(peer / name / "weights.pt", weights_only=True)
    assert list(weights) == list(expected)
    for key, tensor in expected.items():
        assert weights[key].dtype == tensor.dtype and torch.equal(weights[key], tensor), key
    exported_models.MODELS[model][0]().load_state_dict(weights)  # strict
    assert torch.equal(load_file(ours / name / "prediction.safetensors")["output"],
                       load_file(peer / name / "prediction.safetensors")["output"])


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


def test_a_trace_shows_the_modules_and_their_operators(exported, table, tmp_path):
    train_by_command(exported, table, tmp_path, "--optimizer", "sgd", "--trace-steps", "2:3")
    events = json.loads((tmp_path / "run" / "rank0.pt.trace.json").read_text())["traceEvents"]
    modules = [event for event in events if event.get("cat") == "user_annotation" and event["name"].startswith("layers.")]
    assert {event["name"] for event in modules} == {f"layers.{i}" for i in range(7)}
    first = next(event for event in modules if event["name"] == "layers.0")
    inside = {event["name"] for event in events if event.get("cat") == "cpu_op" and event["tid"] == first["tid"]
              and event["ts"] >= first["ts"] and event["ts"] + event["dur"] <= first["ts"] + first["dur"]}
    assert "aten::linear" in inside
    operators = {event["name"] for event in events if event.get("cat") == "cpu_op"}
    assert "" not in operators and not any(name.startswith("layers") for name in operators)


def test_a_number_as_input_is_refused_before_the_training(table, tmp_path):
    class Scaled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(20, 10)

        def forward(self, x, times: int):
            return self.layer(x) * times

    shapes = {"x": {0: torch.export.Dim("batch", min=1, max=64)}, "times": torch.export.Dim.DYNAMIC}
    torch.export.save(torch.export.export(Scaled(), (torch.ones(4, 20), 3), dynamic_shapes=shapes), tmp_path / "scaled.pt2")
    assert "the input 'times' of the model is a number, and data are tensors" in run_command(
        "train", tmp_path / "scaled.pt2", "--inputs", table / "x.npy", "--targets", table / "y.npy", "--loss", "cross_entropy",
        "--run-dir", tmp_path / "run", status=2)
    assert not (tmp_path / "run").exists()


def test_inspect_lists_inputs_weights_modules_and_operators(exported):
    facts = json.loads(run_command("ckpt", "inspect", exported / "mlp.pt2", "--json"))
    assert facts["kind"] == "exported model" and facts["supported"]
    assert facts["inputs"] == {"x": "float32 [1 to 64, 20]"} and facts["outputs"] == [""]
    assert {"name": "torch.ops.aten.linear.default", "count": 3, "supported": True} in facts["operators"]
    model = exported_models.Mlp()
    assert {row["name"]: tuple(row["shape"]) for row in facts["tensors"]} == {
        name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    called = {row["name"]: row["class"] for row in facts["modules"] if row["class"]}
    assert called == {name: type(module).__name__ for name, module in model.named_modules() if not list(module.children())}
    assert [row["name"] for row in facts["modules"]] == [name for name, _ in model.named_modules()]
    assert {row["name"]: row["parameters"] for row in facts["modules"]} == {
        name: sum(parameter.numel() for parameter in module.parameters(recurse=False)) for name, module in model.named_modules()}


def test_inspect_folds_repeated_modules(exported):
    printed = [line.split() for line in run_command("ckpt", "inspect", exported / "gpt2.pt2").splitlines()]
    blocks = exported_models.Gpt2().h
    assert ["tokens", "int64", "[1", "to", "64,", "16]"] in printed
    start = printed.index(["h.{0..1}", "GptBlock", str(sum(parameter.numel() for parameter in blocks.parameters()))])
    # The two layer norms come one after the other and are alike.
    assert printed[start + 1] == ["ln_{1..2}", "LayerNorm", str(2 * 2 * 2 * 32)]
    assert [row[0] for row in printed[start + 2:start + 7]] == [name for name, _ in blocks[0].named_children()][2:]
    assert ["torch.ops.aten.layer_norm.default", "5", "yes"] in printed
    assert ["outputs", "one", "without", "a", "name"] in printed


def test_inspect_keeps_the_order_of_inputs_and_folds_names_with_numbers(tmp_path):
    class Blocks(torch.nn.Module):
        def __init__(self):
            super().__init__()
            for number in range(8, 11):
                setattr(self, f"block{number}", torch.nn.Linear(4, 4))
            self.block11 = torch.nn.Linear(4, 4, bias=False)

        def forward(self, x, a):
            for module in self.children():
                x = module(x)
            return {"sum": x + a, "product": x * a}

    torch.export.save(torch.export.export(Blocks(), (torch.ones(2, 4), torch.ones(4))), tmp_path / "blocks.pt2")
    printed = [line.split() for line in run_command("ckpt", "inspect", tmp_path / "blocks.pt2").splitlines()]
    assert ["outputs", "sum,", "product"] in printed
    inputs = printed.index(["input", "exported", "for"])
    assert printed[inputs + 1:inputs + 3] == [["x", "float32", "[2,", "4]"], ["a", "float32", "[4]"]]
    modules = printed.index(["module", "class", "parameters"])
    assert printed[modules + 1:modules + 4] == [["block{8..10}", "Linear", "60"], ["block11", "Linear", "16"], []]
