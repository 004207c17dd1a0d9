"""Weights from Python to Lockstep and back: the same values, the same predictions."""

import collections
import os
import subprocess

import pytest
import safetensors.torch
import torch

torch.set_num_threads(1)


def mlp():
    return torch.nn.Sequential(
        torch.nn.Linear(4, 16), torch.nn.ReLU(), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 3))


def cnn():
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
        torch.nn.Flatten(), torch.nn.Linear(36, 5))


MODELS = {"mlp": (mlp, (8, 4)), "cnn": (cnn, (8, 1, 8, 8))}


def trained(name, dtype=torch.float32):
    """A model whose statistics are no longer the initial ones, and a batch for it."""
    make, shape = MODELS[name]
    torch.manual_seed(1)
    model = make()
    for _ in range(3):
        model(torch.randn(shape))
    return model.to(dtype).eval(), torch.randn(shape).to(dtype)


def plain(state):
    return state


def wrapped(state):
    return collections.OrderedDict((f"module.{name}", tensor) for name, tensor in state.items())


def compiled_and_wrapped(state):
    return {f"module._orig_mod.{name}": tensor for name, tensor in state.items()}


def nested(state):
    return {"epoch": 3, "model": state, "optimizer": {"param_groups": [{"lr": 0.1, "betas": (0.9, 0.999)}]}}


def nested_and_wrapped(state):
    return {"state_dict": wrapped(state), "loss": torch.tensor(0.5)}


def parameters(state):
    return {name: torch.nn.Parameter(tensor, requires_grad=tensor.is_floating_point()) for name, tensor in state.items()}


def slices(state):
    """Makes every floating-point tensor a view of one storage, as a flat buffer does."""
    floats = {name: tensor for name, tensor in state.items() if tensor.is_floating_point()}
    flat = torch.cat([tensor.reshape(-1) for tensor in floats.values()])
    parts = flat.split([tensor.numel() for tensor in floats.values()])
    views = {name: part.view(tensor.shape) for part, (name, tensor) in zip(parts, floats.items())}
    return {name: views.get(name, tensor) for name, tensor in state.items()}


KEEPING = [plain, wrapped, compiled_and_wrapped, nested, nested_and_wrapped, parameters, slices]


@pytest.fixture
def ours(bin_dir, tmp_path):
    def run(*arguments, status=0):
        environment = dict(os.environ, OMP_NUM_THREADS="1")
        done = subprocess.run([*map(str, arguments)], capture_output=True, text=True, timeout=120, env=environment)
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout

    def call(program, *arguments, status=0):
        path = bin_dir / "lockstep" if program == "ckpt" else bin_dir / "test" / "interop_weights"
        return run(path, program, *arguments, status=status)

    return call


def assert_same(ours, theirs):
    assert list(ours) == list(theirs)
    for name, tensor in theirs.items():
        assert ours[name].dtype == tensor.dtype, name
        assert ours[name].shape == tensor.shape, name
        assert torch.equal(ours[name], tensor), name


def predict(ours, tmp_path, model, weights, batch):
    torch.save({"input": batch}, tmp_path / "data.pt")
    ours("predict", model, weights, tmp_path / "data.pt", tmp_path / "output.pt")
    return torch.load(tmp_path / "output.pt", weights_only=True)["output"]


@pytest.mark.parametrize("keep", KEEPING, ids=lambda keep: keep.__name__)
@pytest.mark.parametrize("name", MODELS)
def test_pythons_weights_predict_the_same_here(ours, tmp_path, name, keep):
    model, batch = trained(name)
    torch.save(keep(model.state_dict()), tmp_path / "weights.pt")
    with torch.no_grad():
        assert torch.equal(predict(ours, tmp_path, name, tmp_path / "weights.pt", batch), model(batch))


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_every_pickle_protocol(ours, tmp_path, protocol):
    model, batch = trained("mlp")
    torch.save(model.state_dict(), tmp_path / "weights.pt", pickle_protocol=protocol)
    with torch.no_grad():
        assert torch.equal(predict(ours, tmp_path, "mlp", tmp_path / "weights.pt", batch), model(batch))


def test_the_format_before_1_6_and_safetensors(ours, tmp_path):
    model, batch = trained("cnn")
    torch.save(model.state_dict(), tmp_path / "legacy.pt", _use_new_zipfile_serialization=False)
    safetensors.torch.save_file(model.state_dict(), tmp_path / "weights.safetensors")
    with torch.no_grad():
        for file in ("legacy.pt", "weights.safetensors"):
            assert torch.equal(predict(ours, tmp_path, "cnn", tmp_path / file, batch), model(batch)), file


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
def test_other_dtypes(ours, tmp_path, dtype):
    model, batch = trained("mlp", dtype)
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    with torch.no_grad():
        assert torch.equal(predict(ours, tmp_path, "mlp", tmp_path / "weights.pt", batch), model(batch))


def every_kind():
    grid = torch.randn(4, 5)
    kinds = {str(dtype): torch.randint(0, 2, (3, 2)).to(dtype) for dtype in (
        torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16,
        torch.int8, torch.uint8, torch.bool, torch.complex64, torch.complex128, torch.uint16, torch.uint32,
        torch.uint64)}
    return kinds | {"scalar": torch.tensor(2.5), "empty": torch.zeros(0, 3), "transposed": grid.t(),
                    "part": grid[1:3, ::2], "conj": torch.randn(3, dtype=torch.complex64).conj(), "grid": grid}


def test_our_pt_file_opens_with_weights_only(ours, tmp_path):
    tensors = every_kind()
    torch.save(tensors, tmp_path / "theirs.pt")
    ours("convert", tmp_path / "theirs.pt", tmp_path / "ours.pt")
    opened = torch.load(tmp_path / "ours.pt", weights_only=True)
    assert type(opened) is collections.OrderedDict
    assert_same(opened, tensors)
    mapped = torch.load(tmp_path / "ours.pt", weights_only=True, mmap=True)
    assert_same(mapped, tensors)


def test_our_safetensors_file_opens(ours, tmp_path):
    tensors = {name: tensor for name, tensor in every_kind().items() if not tensor.dtype.is_complex}
    torch.save(tensors, tmp_path / "theirs.pt")
    ours("convert", tmp_path / "theirs.pt", tmp_path / "ours.safetensors")
    opened = safetensors.torch.load_file(tmp_path / "ours.safetensors")
    assert_same(dict(sorted(opened.items())), dict(sorted(tensors.items())))


def test_tied_weights_stay_tied(ours, tmp_path):
    shared = torch.randn(3)
    torch.save({"a": shared, "b": shared}, tmp_path / "theirs.pt")
    ours("convert", tmp_path / "theirs.pt", tmp_path / "ours.pt")
    opened = torch.load(tmp_path / "ours.pt", weights_only=True)
    assert opened["a"].data_ptr() == opened["b"].data_ptr()


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("suffix", ["pt", "safetensors"])
def test_a_checkpoint_loads_strictly_in_python(ours, tmp_path, name, suffix):
    model, batch = trained(name)
    torch.save(wrapped(model.state_dict()), tmp_path / "theirs.pt")
    ours("ckpt", "import", tmp_path / "theirs.pt", "--to", tmp_path / "run")
    ours("ckpt", "export", tmp_path / "run", "--to", tmp_path / f"ours.{suffix}")
    if suffix == "pt":
        state = torch.load(tmp_path / "ours.pt", weights_only=True)
    else:
        state = safetensors.torch.load_file(tmp_path / "ours.safetensors")
    again = MODELS[name][0]().eval()
    again.load_state_dict(state, strict=True)
    with torch.no_grad():
        assert torch.equal(again(batch), model(batch))
    ours("ckpt", "diff", tmp_path / "run", tmp_path / "theirs.pt")


def test_the_prefix_of_ddp_can_be_put_back(ours, tmp_path):
    model, _ = trained("mlp")
    torch.save(model.state_dict(), tmp_path / "plain.pt")
    ours("ckpt", "export", tmp_path / "plain.pt", "--to", tmp_path / "ddp.pt", "--prefix", "module.")
    assert_same(torch.load(tmp_path / "ddp.pt", weights_only=True), wrapped(model.state_dict()))


def test_a_whole_module_is_refused_with_advice(ours, tmp_path):
    torch.save(mlp(), tmp_path / "module.pt")
    ours("ckpt", "inspect", tmp_path / "module.pt", status=2)


class Script(torch.nn.Module):
    """A module with branches, a shared layer, and a buffer that is replaced."""

    def __init__(self):
        super().__init__()
        self.enter = torch.nn.Linear(4, 8)
        self.norm = torch.nn.BatchNorm1d(8)
        self.shared = torch.nn.Linear(8, 8, bias=False)
        self.leave = torch.nn.Linear(8, 2)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        if self.training:
            self.calls = self.calls + 1
        x = torch.relu(self.norm(self.enter(x)))
        for _ in range(2):
            x = torch.tanh(self.shared(x))
        return self.leave(x)


@pytest.fixture
def script(tmp_path):
    torch.manual_seed(2)
    torch.jit.script(Script()).save(tmp_path / "script.pt")
    torch.save({"input": torch.randn(16, 4), "target": torch.randn(16, 2)}, tmp_path / "data.pt")
    return tmp_path / "script.pt"


def train(model, data, steps, learning_rate):
    optimizer = torch.optim.SGD(model.parameters(), learning_rate)
    model.train()
    for _ in range(steps):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(data["input"]), data["target"]).backward()
        optimizer.step()
    return model


@pytest.mark.parametrize("steps", [1, 10])
def test_a_script_trains_here_as_in_python(ours, tmp_path, script, steps):
    data = torch.load(tmp_path / "data.pt", weights_only=True)
    theirs = train(torch.jit.load(script), data, steps, 0.1)
    ours("train", script, tmp_path / "data.pt", steps, 0.1, tmp_path / "weights.pt", tmp_path / "trained.pt")
    weights = torch.load(tmp_path / "weights.pt", weights_only=True)
    expected = theirs.state_dict()
    assert sorted(weights) == sorted(expected)
    for name, tensor in expected.items():
        assert torch.equal(weights[name], tensor), name
    assert weights["calls"] == steps

    again = torch.jit.load(tmp_path / "trained.pt")
    assert not again.training
    with torch.no_grad():
        assert torch.equal(again(data["input"]), theirs.eval()(data["input"]))


def test_a_script_takes_weights_of_its_python_class(ours, tmp_path, script):
    torch.manual_seed(3)
    model = Script().eval()
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    data = torch.load(tmp_path / "data.pt", weights_only=True)
    with torch.no_grad():
        assert torch.equal(
            predict(ours, tmp_path, script, tmp_path / "weights.pt", data["input"]), model(data["input"]))
