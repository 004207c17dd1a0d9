"""`lockstep train model.pt2` compared with a loop in eager PyTorch: dtypes, data, losses, optimizers, mixed precision, ZeRO,
resuming and being killed."""

import os
import pathlib
import re
import signal
import subprocess
import sys

import h5py
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from exported_command import (BIN, ENVIRONMENT, EPOCHS, LR, SAMPLES, SEED, different, export, normal, save, small_model, train, train_eagerly,
                              trained)

sys.path.insert(0, str(pathlib.Path(__file__).parent / "programs"))

import exported_models  # noqa: E402


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """A folder with x.npy, y.npy and model.pt2: a regression."""
    folder = tmp_path_factory.mktemp("table")
    save(folder, x=normal(SAMPLES, 6), y=normal(SAMPLES, 3, seed=6))
    export(small_model(), folder / "model.pt2", normal(4, 6))
    return folder


def files(folder, loss="mse", x="x", y="y"):
    return "--inputs", folder / f"{x}.npy", "--targets", folder / f"{y}.npy", "--loss", loss


def mse(model, x, y):
    return F.mse_loss(model(x), y)


def test_a_model_keeps_its_dtype(table, tmp_path):
    for dtype in (torch.float64, torch.bfloat16):
        folder = tmp_path / str(dtype)
        folder.mkdir()
        model = small_model().to(dtype)
        file = export(model, folder / "model.pt2", normal(4, 6).to(dtype))
        state = trained(file, folder, *files(table), "--save-program", folder / "trained.pt2")
        expected = train_eagerly(model, normal(SAMPLES, 6).to(dtype), normal(SAMPLES, 3, seed=6).to(dtype), loss=mse)
        assert {tensor.dtype for tensor in state.values()} == {dtype}
        assert different(state, expected) == []
        assert different(dict(torch.export.load(folder / "trained.pt2").state_dict), expected) == []
    # A flag converts it.
    state = trained(file, tmp_path, *files(table), "--dtype", "float32", "--epochs", "1")
    assert {tensor.dtype for tensor in state.values()} == {torch.float32}


def test_a_model_of_two_dtypes_needs_a_choice(table, tmp_path):
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 3).double()

        def forward(self, x):
            return self.second(self.first(x).double()).float()

    file = export(Mixed(), tmp_path / "mixed.pt2", normal(4, 6))
    printed = train(file, tmp_path, *files(table), status=2)
    assert "the model has tensors of float32 and, for example 'second.weight', of float64: choose one with --dtype" in printed


def test_what_cannot_be_saved_is_refused_before_the_training(table, tmp_path):
    printed = train(table / "model.pt2", tmp_path, *files(table), "--dtype", "bfloat16", "--save-program", tmp_path / "t.pt2", status=2)
    assert "--save-program cannot write a model of bfloat16, because its program is for float32" in printed
    assert "Iteration" not in printed
    for flag in ("--save-program", "--save-state-dict"):
        printed = train(table / "model.pt2", tmp_path, *files(table), flag, tmp_path / "none" / "file.pt", status=2)
        assert f"{flag} cannot write '{tmp_path}/none/file.pt': there is no folder '{tmp_path}/none'" in printed
        assert "Iteration" not in printed


def test_targets_of_another_shape_are_refused(table, tmp_path):
    save(tmp_path, column=normal(SAMPLES, 1), pictures=normal(SAMPLES, 4, 5, 2), x=normal(SAMPLES, 2, 4, 5))
    printed = train(table / "model.pt2", tmp_path, "--inputs", table / "x.npy", "--targets", tmp_path / "column.npy", "--loss", "mse",
                    status=2)
    assert "the prediction has the shape [16, 3] and the targets have [16, 1]: only dimensions of size 1 may differ" in printed
    file = export(nn.Conv2d(2, 2, 1), tmp_path / "pictures.pt2", normal(4, 2, 4, 5))
    printed = train(file, tmp_path, *files(tmp_path, "l1", y="pictures"), status=2)
    assert "the prediction has the shape [16, 2, 4, 5] and the targets have [16, 4, 5, 2]" in printed
    # A column of predictions and a row of targets are the same numbers.
    save(tmp_path, row=normal(SAMPLES), rows=normal(SAMPLES, 6))
    model = small_model(1)
    state = trained(export(model, tmp_path / "one.pt2", normal(4, 6)), tmp_path, *files(tmp_path, x="rows", y="row"))
    assert different(state, train_eagerly(model, normal(SAMPLES, 6), normal(SAMPLES), loss=lambda model, x, y: mse(model, x, y[:, None]))) == []


def test_accuracy_takes_probabilities_and_refuses_what_has_no_classes(table, tmp_path):
    targets = normal(SAMPLES, 3, seed=6).softmax(1)
    save(tmp_path, x=normal(SAMPLES, 6), y=targets, column=targets[:, :1])
    printed = train(table / "model.pt2", tmp_path, *files(tmp_path, "cross_entropy"), "--save-state-dict", tmp_path / "state.pt", "--lr", "0",
                    "--epochs", "1")
    with torch.no_grad():
        accuracy = (small_model()(normal(SAMPLES, 6)).argmax(1) == targets.argmax(1)).float().mean().item()
    assert float(re.search(r"Train_Accuracy: ([0-9.]+)", printed)[1]) == pytest.approx(accuracy, abs=1e-6)
    file = export(small_model(1), tmp_path / "one.pt2", normal(4, 6))
    assert "the metric accuracy compares scores [N, classes, ...] with classes [N, ...]: the prediction has the shape [16, 1]" in train(
        file, tmp_path, *files(tmp_path, "bce_with_logits", y="column"), "--metrics", "accuracy", status=2)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_mixed_precision_has_the_bits_of_pytorchs_autocast(table, tmp_path, precision):
    """Targets stay in float32, also where the prediction has 16 bits."""
    dtype = torch.bfloat16 if precision == "bf16" else torch.float16
    state = trained(table / "model.pt2", tmp_path, *files(table), "--precision", precision)
    expected = train_eagerly(small_model(), normal(SAMPLES, 6), normal(SAMPLES, 3, seed=6), loss=mse, autocast=dtype)
    assert different(state, expected) == []
    rounded = train_eagerly(small_model(), normal(SAMPLES, 6), normal(SAMPLES, 3, seed=6).to(dtype), loss=mse, autocast=dtype)
    assert different(rounded, expected) != []


def test_sync_batch_norm_is_refused(tmp_path):
    save(tmp_path, x=normal(SAMPLES, 6), y=normal(SAMPLES, 6))
    file = export(nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6)), tmp_path / "norm.pt2", normal(4, 6))
    printed = train(file, tmp_path, *files(tmp_path), "--sync-batch-norm", status=2)
    assert ("sync_batch_norm does not work with an exported model, whose batch norm is the operator "
            "torch.ops.aten.batch_norm.default: leave it out") in printed


class Integers(nn.Module):
    """Inputs of the dtypes that Python programs choose to save memory."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.embedding, self.head = nn.Embedding(32, 4), nn.Linear(10, 3)

    def forward(self, token, picture, mask):
        return self.head(torch.cat([self.embedding(token), picture / 255], dim=1) * mask)


def test_integers_get_the_dtype_of_the_models_inputs(tmp_path):
    generator = torch.Generator().manual_seed(5)
    token = torch.randint(32, (SAMPLES,), generator=generator)
    picture = torch.randint(256, (SAMPLES, 6), generator=generator)
    mask = torch.randint(2, (SAMPLES, 1), generator=generator)
    classes = torch.randint(3, (SAMPLES,), generator=generator)
    save(tmp_path, token=token, picture=picture.to(torch.int16), mask=mask, y=classes.to(torch.int32), large=picture + 1)
    model = Integers()
    inputs = (token.to(torch.int32), picture.to(torch.uint8), mask.bool())
    file = export(model, tmp_path / "integers.pt2", *(tensor[:4] for tensor in inputs))

    def flags(picture):
        return ("--inputs", ",".join(str(tmp_path / f"{name}.npy") for name in ("token", picture, "mask")),
                "--targets", tmp_path / "y.npy", "--loss", "cross_entropy")

    state = trained(file, tmp_path, *flags("picture"))
    expected = train_eagerly(model, *inputs, classes, loss=lambda model, *batch: F.cross_entropy(model(*batch[:3]), batch[3]))
    assert different(state, expected) == []
    assert "large.npy' has dtype Long and values that do not fit into Byte, the dtype of the model's input 'picture'" in train(
        file, tmp_path, *flags("large"), status=2)


class Choices(nn.Module):
    """Inputs of which torch.export makes constants."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.head = nn.Linear(6, 3)

    def forward(self, x, mask, squash: bool, scale: float, power: int, mode: str, *, extra=None):
        hidden = torch.where(mask, x, 0) * scale
        hidden = torch.tanh(hidden) if squash else hidden
        hidden = hidden ** power if mode == "power" else hidden
        return self.head(hidden if extra is None else hidden + extra)


def test_numbers_booleans_and_texts_are_constants_of_the_export(tmp_path):
    x, mask = normal(SAMPLES, 6), normal(SAMPLES, 6, seed=7) > 0
    save(tmp_path, x=x, mask=mask, y=normal(SAMPLES, 3, seed=6))
    batch = torch.export.Dim("batch", min=1, max=64)
    for number, choices in enumerate([(True, 0.5, 3, "power"), (False, -2.0, 2, "none")]):
        program = torch.export.export(Choices(), (x[:4], mask[:4], *choices), {"extra": None},
                                      dynamic_shapes=({0: batch}, {0: batch}, None, None, None, None, None))
        torch.export.save(program, tmp_path / f"choices{number}.pt2")
        state = trained(tmp_path / f"choices{number}.pt2", tmp_path, "--inputs", f"{tmp_path}/x.npy,{tmp_path}/mask.npy", "--targets",
                        tmp_path / "y.npy", "--loss", "mse")
        expected = train_eagerly(Choices(), x, mask, normal(SAMPLES, 3, seed=6),
                                 loss=lambda model, x, mask, y: F.mse_loss(model(x, mask, *choices), y))
        assert different(state, expected) == []


class Lion(torch.optim.Optimizer):
    def __init__(self, parameters, lr):
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for parameter in self.param_groups[0]["params"]:
            average = self.state[parameter].setdefault("average", torch.zeros_like(parameter))
            parameter -= LR * (0.9 * average + 0.1 * parameter.grad).sign()
            average.mul_(0.99).add_(0.01 * parameter.grad)


class Lamb(torch.optim.Optimizer):
    def __init__(self, parameters, lr):
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            count = state["count"] = state.get("count", 0) + 1
            average = state.setdefault("average", torch.zeros_like(parameter))
            square = state.setdefault("square", torch.zeros_like(parameter))
            average.mul_(0.9).add_(0.1 * parameter.grad)
            square.mul_(0.999).add_(0.001 * parameter.grad**2)
            update = average / (square.sqrt() + 1e-8)
            ratio = min(max((parameter.norm() / update.norm()).item(), 0.01), 10.0)
            parameter -= LR * (1 - 0.999**count)**0.5 / (1 - 0.9**count) * ratio * update


# The optimizer: what PyTorch has for it, its loss here, and the largest difference of a weight.
OPTIMIZERS = {
    "adam": (lambda p: torch.optim.Adam(p, lr=LR, fused=True), "l1", 0),
    "adagrad": (lambda p: torch.optim.Adagrad(p, lr=LR), "smooth_l1", 0),
    "rmsprop": (lambda p: torch.optim.RMSprop(p, lr=LR, momentum=0.9), "bce_with_logits", 0),
    "adadelta": (lambda p: torch.optim.Adadelta(p, lr=LR), "nll", 0),
    "lion": (lambda p: Lion(p, LR), "mse", 1e-6),
    "lamb": (lambda p: Lamb(p, LR), "mse", 1e-6),
}
LOSSES = {"l1": F.l1_loss, "smooth_l1": F.smooth_l1_loss, "bce_with_logits": F.binary_cross_entropy_with_logits,
          "nll": F.nll_loss, "mse": F.mse_loss}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_and_losses_train_as_in_pytorch(table, tmp_path, name):
    optimizer, loss, tolerance = OPTIMIZERS[name]
    targets = normal(SAMPLES, 3, seed=6)
    targets = {"bce_with_logits": targets.sigmoid(), "nll": targets.argmax(1)}.get(loss, targets)
    model, file = small_model(), table / "model.pt2"
    if loss == "nll":
        model.append(nn.LogSoftmax(1))
        file = export(model, tmp_path / "classes.pt2", normal(4, 6))
    save(tmp_path, x=normal(SAMPLES, 6), y=targets)
    momentum = ("--momentum", "0.9") if name == "rmsprop" else ()
    state = trained(file, tmp_path, *files(tmp_path, loss), "--optimizer", name, *momentum)
    expected = train_eagerly(model, normal(SAMPLES, 6), targets, optimizer=optimizer,
                             loss=lambda model, x, y: LOSSES[loss](model(x), y))
    if tolerance == 0:
        assert different(state, expected) == []
    for key, tensor in expected.items():
        torch.testing.assert_close(state[key], tensor, rtol=0, atol=tolerance)


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.first, self.second = nn.Linear(6, 3), nn.Linear(2, 3)

    def forward(self, x, extra):
        return self.first(x) * self.second(extra)


def test_several_inputs_validation_and_a_schedule(tmp_path):
    tensors = normal(SAMPLES, 6), normal(SAMPLES, 2, seed=7), normal(SAMPLES, 3, seed=6)
    held_out = normal(32, 6, seed=11), normal(32, 2, seed=12), normal(32, 3, seed=13)
    save(tmp_path, x=tensors[0], extra=tensors[1], y=tensors[2], vx=held_out[0], ve=held_out[1], vy=held_out[2])
    model = Two()
    file = export(model, tmp_path / "two.pt2", *(tensor[:4] for tensor in tensors[:2]))
    train(file, tmp_path, "--inputs", f"{tmp_path}/x.npy,{tmp_path}/extra.npy", "--targets", tmp_path / "y.npy",
          "--val-inputs", f"{tmp_path}/vx.npy,{tmp_path}/ve.npy", "--val-targets", tmp_path / "vy.npy", "--loss", "mse",
          "--metrics", "mae", "--schedule", "cosine", "--save-state-dict", tmp_path / "state.pt", "--run-dir", tmp_path / "validated")
    expected = train_eagerly(model, *tensors, loss=lambda model, x, extra, y: F.mse_loss(model(x, extra), y),
                             schedule=lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=EPOCHS))
    assert different(torch.load(tmp_path / "state.pt", weights_only=True), expected) == []
    with torch.no_grad():
        prediction = model(*held_out[:2])
    expected = {"val_loss": F.mse_loss(prediction, held_out[2]).item(), "val_mae": F.l1_loss(prediction, held_out[2]).item()}
    lines = (tmp_path / "validated" / "metrics.csv").read_text().splitlines()
    rows = [dict(zip(lines[0].split(","), line.split(","))) for line in lines[1:]]
    for name, value in expected.items():
        assert float([row[name] for row in rows if row.get(name)][-1]) == pytest.approx(value, rel=1e-6)


def test_image_sets(tmp_path):
    """A set of images by --data, normalised by the command; and one whose bytes the model normalises itself."""
    generator = torch.Generator().manual_seed(5)
    pictures = torch.randint(256, (SAMPLES, 8, 8, 3), generator=generator, dtype=torch.uint8)
    classes = torch.randint(4, (SAMPLES,), generator=generator)
    for split in ("train", "test"):
        with h5py.File(tmp_path / f"{split}.h5", "w") as file:
            file["images"], file["labels"] = pictures.numpy(), classes.numpy()
    channels_first = pictures.permute(0, 3, 1, 2).contiguous()

    class Bytes(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(3)
            self.convolution, self.head = nn.Conv2d(3, 4, 3), nn.Linear(4 * 36, 4)

        def forward(self, x):
            x = (x / 255 - 0.5) / 0.25 if x.dtype == torch.uint8 else x
            return self.head(self.convolution(x).relu().flatten(1))

    def loss(model, x, y):
        return F.cross_entropy(model(x), y)

    for inputs, flags in ((((channels_first / 255 - 0.5) / 0.25), ("--image-mean", "0.5", "--image-std", "0.25")), (channels_first, ())):
        model = Bytes()
        file = export(model, tmp_path / "pictures.pt2", inputs[:4])
        state = trained(file, tmp_path, "--data", tmp_path, "--image-set", "cifar10", "--loss", "cross_entropy", *flags)
        assert different(state, train_eagerly(model, inputs, classes, loss=loss)) == []


class Dropout(nn.Module):
    """A model whose training depends on the state of the random numbers."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.layers = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Dropout(0.3), nn.BatchNorm1d(24), nn.Linear(24, 3))

    def forward(self, x):
        return self.layers(x)


RANDOM = ("--nprocs", "2", "--optimizer", "adamw", "--batch-size", "8")


def test_a_training_that_stops_in_an_epoch_resumes_with_the_same_bits(table, tmp_path):
    file = export(Dropout(), tmp_path / "dropout.pt2", normal(4, 6))
    words = (*files(table), *RANDOM, "--epochs", "5")
    expected = trained(file, tmp_path, *words)
    stopped = train(file, tmp_path, *words, "--max-steps", "10", "--run-dir", tmp_path / "stopped")
    assert "Trained 2 epochs (10 steps)" in stopped
    state = trained(file, tmp_path, *words, "--resume", tmp_path / "stopped", "--run-dir", tmp_path / "resumed")
    assert different(state, expected) == []


def kill_in_training(*words):
    """Starts the command and kills all of its processes after two epochs; the last epoch that it printed."""
    process = subprocess.Popen([BIN / "lockstep", *words], stdout=subprocess.PIPE, text=True, env=ENVIRONMENT, start_new_session=True)
    printed = []
    with process:
        for line in process.stdout:
            printed += [int(number) for number in re.findall(r"Iteration +(\d+)", line)]
            if len(printed) == 2:
                os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    return printed[-1]


def test_a_training_that_is_killed_again_and_again_ends_with_the_same_bits(table, tmp_path):
    """Killed while it saves each step; the last run resumes from the newest checkpoint that is complete."""
    file = export(Dropout(), tmp_path / "dropout.pt2", normal(4, 6))
    words = (*files(table), *RANDOM, "--checkpoint-every-steps", "1")
    for _ in range(3):
        last = kill_in_training("train", file, *words, "--epochs", "100000", "--lr", str(LR), "--seed", str(SEED), "--tracking_tool", "none",
                                "--run-dir", tmp_path / "killed")
    # The killed run may have finished some epochs that it did not print.
    epochs = str(last + 20)
    printed = train(file, tmp_path, *words, "--epochs", epochs, "--run-dir", tmp_path / "killed", "--save-state-dict",
                    tmp_path / "killed.pt")
    assert "Going on from" in printed
    expected = trained(file, tmp_path, *files(table), *RANDOM, "--epochs", epochs)
    assert different(torch.load(tmp_path / "killed.pt", weights_only=True), expected) == []


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_every_stage_of_zero_ends_with_the_same_bits(table, tmp_path, precision):
    expected = None
    for stage in range(4):
        folder = tmp_path / str(stage)
        folder.mkdir()
        state = trained(table / "model.pt2", folder, *files(table), "--nprocs", "2", "--optimizer", "adamw", "--zero-stage", str(stage),
                        "--precision", precision)
        expected = expected or state
        assert different(state, expected) == [], stage
