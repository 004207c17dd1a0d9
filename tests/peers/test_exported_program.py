"""What Python has around an exported model, with the files of `lockstep train net.pt2`: programs with the trained weights,
custom operators, models of Hugging Face."""

import json

import numpy
import pytest
import torch
import transformers
from torch import nn

from exported_command import BATCH, BIN, different, run_command, train, train_eagerly

SEED = 3


class Layouts(nn.Module):
    """Weights of every layout in a file: tied, a part of a larger one, transposed, expanded; buffers that change."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 6, bias=False), nn.Linear(6, 6)
        self.second.weight = self.first.weight
        memory = torch.randn(100)
        self.row, self.column = nn.Parameter(memory[10:16]), nn.Parameter(memory[40:46])
        self.turned = nn.Parameter(torch.randn(3, 6).t())
        self.norm = nn.BatchNorm1d(6)
        self.register_buffer("expanded", torch.ones(1).expand(50000))
        self.register_buffer("total", torch.zeros(()), persistent=False)
        self.shift = torch.linspace(0, 1, 6)

    def forward(self, x):
        self.total += 1
        hidden = self.norm(self.second(torch.tanh(self.first(x)))) * self.row + self.column + self.shift
        return hidden @ self.turned * self.expanded[:1] + self.total


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    folder = tmp_path_factory.mktemp("table")
    generator = torch.Generator().manual_seed(5)
    inputs, targets = torch.randn(64, 6, generator=generator), torch.randn(64, 3, generator=generator)
    numpy.save(folder / "x.npy", inputs.numpy())
    numpy.save(folder / "y.npy", targets.numpy())
    return folder, inputs, targets


def test_a_program_with_the_trained_weights_opens_in_python(table, tmp_path):
    folder, inputs, targets = table
    torch.manual_seed(SEED)
    model = Layouts()
    torch.export.save(torch.export.export(model, (inputs[:4],), dynamic_shapes=({0: BATCH},)), tmp_path / "layouts.pt2",
                      extra_files={"note.txt": "kept"})
    printed = train(tmp_path / "layouts.pt2", tmp_path, "--inputs", folder / "x.npy", "--targets", folder / "y.npy", "--loss", "mse",
                    "--save-program", tmp_path / "trained.pt2", "--save-state-dict", tmp_path / "state.pt")
    assert f"Program: {tmp_path / 'trained.pt2'}" in printed

    extra = {"note.txt": ""}
    program = torch.export.load(tmp_path / "trained.pt2", extra_files=extra)
    assert extra["note.txt"] == "kept"
    train_eagerly(model, inputs, targets, loss=lambda model, x, y: nn.functional.mse_loss(model(x), y))
    assert different(dict(program.state_dict), dict(model.state_dict())) == []
    assert different(torch.load(tmp_path / "state.pt", weights_only=True), dict(model.state_dict())) == []
    assert program.constants["total"] == 8
    original = torch.export.load(tmp_path / "layouts.pt2")
    for name, tensor in original.state_dict.items():
        assert program.state_dict[name].stride() == tensor.stride()
        assert program.state_dict[name].storage_offset() == tensor.storage_offset()
    again = program.module()
    assert torch.equal(again(inputs[:8]), model(inputs[:8]))
    # What Python saves again trains here again.
    torch.export.save(program, tmp_path / "again.pt2")
    train(tmp_path / "trained.pt2", tmp_path / "again", "--inputs", folder / "x.npy", "--targets", folder / "y.npy", "--loss", "mse")


OPERATORS = BIN / "test" / "libcustom_operators.so"


class Custom(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.gate = nn.Linear(6, 3), nn.Linear(6, 3)

    def forward(self, x):
        operators = torch.ops.lockstep_test
        return operators.scaled_square(operators.plus_one(self.layer(x)), 0.5) * operators.signs(self.gate(x))


def test_custom_operators_train_with_the_bits_of_eager_pytorch(table, tmp_path):
    torch.ops.load_library(OPERATORS)
    folder, inputs, targets = table
    torch.manual_seed(SEED)
    model = Custom()
    file = tmp_path / "custom.pt2"
    torch.export.save(torch.export.export(model, (inputs[:4],), dynamic_shapes=({0: BATCH},)), file)
    data = ("--inputs", folder / "x.npy", "--targets", folder / "y.npy", "--loss", "mse")

    refused = train(file, tmp_path, *data, status=2)
    assert "torch.ops.lockstep_test.plus_one.default" in refused and "--operators LIBRARY" in refused
    printed = train(file, tmp_path, *data, "--operators", OPERATORS, "--save-state-dict", tmp_path / "state.pt")
    assert "trains nothing through the operator torch.ops.lockstep_test.signs.default at " in printed
    assert "scaled_square" not in printed
    train_eagerly(model, inputs, targets, loss=lambda model, x, y: nn.functional.mse_loss(model(x), y))
    assert different(torch.load(tmp_path / "state.pt", weights_only=True), dict(model.state_dict())) == []

    def operators(*flags):
        rows = json.loads(run_command("ckpt", "inspect", file, "--json", *flags))["operators"]
        return {row["name"].split(".")[3]: (row["supported"], "stops_gradients" in row) for row in rows if "lockstep_test" in row["name"]}

    names = ("plus_one", "scaled_square", "signs")
    assert operators() == {name: (False, False) for name in names}
    assert operators("--operators", OPERATORS) == {name: (True, name == "signs") for name in names}
    assert "none.so': No such file or directory" in train(file, tmp_path, *data, "--operators", tmp_path / "none.so", status=2)
    other = OPERATORS.parent / "nvml" / "libnvidia-ml.so.1"
    assert "it registers no operators" in train(file, tmp_path, *data, "--operators", other, status=2)


def test_a_language_model_of_hugging_face_trains_by_its_own_loss(tmp_path):
    config = transformers.GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=4, use_cache=False,
                                     bos_token_id=0, eos_token_id=0, loss_type="ForCausalLM")
    torch.manual_seed(SEED)
    model = transformers.GPT2LMHeadModel(config).train()
    tokens = torch.randint(64, (64, 16), generator=torch.Generator().manual_seed(5))
    rows = {0: BATCH}
    program = torch.export.export(model, (), {"input_ids": tokens[:4], "labels": tokens[:4]},
                                  dynamic_shapes={"input_ids": rows, "labels": rows})
    torch.export.save(program, tmp_path / "gpt2.pt2")
    numpy.save(tmp_path / "tokens.npy", tokens.numpy())
    facts = json.loads(run_command("ckpt", "inspect", tmp_path / "gpt2.pt2", "--json"))
    assert facts["outputs"] == ["loss", "logits"] and facts["supported"]
    train(tmp_path / "gpt2.pt2", tmp_path, "--inputs", tmp_path / "tokens.npy", "--targets", tmp_path / "tokens.npy", "--loss",
          "output:loss", "--save-state-dict", tmp_path / "state.pt")
    train_eagerly(model, tokens, loss=lambda model, tokens: model(input_ids=tokens, labels=tokens).loss)
    assert different(torch.load(tmp_path / "state.pt", weights_only=True), dict(model.state_dict())) == []


class Tokens(nn.Module):
    """Scores with the classes in the last dimension, as language models give them."""

    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(32, 8), nn.Linear(8, 32)

    def forward(self, tokens):
        return self.head(self.embedding(tokens))


def test_scores_with_the_classes_last_are_compared_with_integer_targets(tmp_path):
    torch.manual_seed(SEED)
    model = Tokens()
    tokens = torch.randint(32, (64, 6), generator=torch.Generator().manual_seed(5))
    torch.export.save(torch.export.export(model, (tokens[:4],), dynamic_shapes=({0: BATCH},)), tmp_path / "tokens.pt2")
    numpy.save(tmp_path / "tokens.npy", tokens.numpy())
    printed = train(tmp_path / "tokens.pt2", tmp_path, "--inputs", tmp_path / "tokens.npy", "--targets", tmp_path / "tokens.npy",
                    "--loss", "cross_entropy", "--save-state-dict", tmp_path / "state.pt")
    assert "Train_Accuracy" in printed
    train_eagerly(model, tokens, loss=lambda model, tokens: nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()))
    assert different(torch.load(tmp_path / "state.pt", weights_only=True), model.state_dict()) == []
