#!/usr/bin/env python3
"""Writes the exported models of the unit tests and of the fuzz tests: .deps/peers/bin/python tests/unit/exported/golden/make_golden.py [NAME...]

The weights are formulas that the tests repeat in C++. net_2_11.pt2 to net_2_14.pt2 are the model net, written by PyTorch 2.11
to 2.14: PYTHON make_golden.py net_2_12, with a Python that has this version. The newest version wrote the other files."""

import pathlib
import re
import sys
import zipfile

import torch
from torch import nn

HERE = pathlib.Path(__file__).parent
CORPUS = HERE.parents[2] / "fuzz"
BATCH = torch.export.Dim("batch", min=1, max=64)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(inplace=True), nn.Dropout(0.5))
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.layers(x))


class Pair(nn.Module):
    """Keyword inputs, tuples and dicts; symbolic sizes; tied weights; regions; constants and buffers of every kind."""

    def __init__(self):
        super().__init__()
        self.encode, self.decode = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
        self.decode.weight = self.encode.weight
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.register_buffer("scale", torch.tensor([2.0]), persistent=False)
        self.shift = torch.tensor([1.0])

    def forward(self, x, extra, *, weight):
        self.calls += 1
        with torch.no_grad():
            norm = self.encode(x).sum()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            half = self.encode(x)
        hidden = self.decode(self.encode(x)) * self.scale + self.shift
        doubled = extra[0].view(x.shape[0], -1)
        return {"sum": hidden.sum() * weight + doubled.sum(), "more": (norm, half), "rows": x.shape[0] * 2}


class Conditional(nn.Module):
    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))


class Random(nn.Module):
    def forward(self, x):
        return x + torch.rand_like(x)


class Functional(nn.Module):
    """Without operators in place, after run_decompositions(): changes of buffers and inputs are results of the program."""

    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(3, 4), nn.BatchNorm1d(4)
        self.register_buffer("seen", torch.zeros(3), persistent=False)

    def forward(self, x, total):
        total.add_(x.sum(0))
        self.seen.add_(1)
        return self.norm(self.linear(x)) * self.seen[0]


class Counter(nn.Module):
    """A buffer that changes in training and is not part of the state dict."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(1, 1)
        self.register_buffer("seen", torch.zeros(1), persistent=False)

    def forward(self, x):
        self.seen.add_(1)
        return self.linear(x) * torch.cos(self.seen)


class Numbers(nn.Module):
    """Integers as inputs, and numbers that the program computes from them and from tensors."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 1)

    def forward(self, x, repeats: int, threshold):
        bound = threshold.item()
        rows = self.linear(x).repeat(repeats, 1)
        mean = torch.sym_float(repeats) / 2
        return rows * mean + bound, repeats * 2, bound


class Fixed(nn.Module):
    """Inputs of which torch.export makes constants, and a mask."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, mask, squash: bool, scale: float, repeats: int, mode: str, extra=None):
        rows = self.linear(mask.to(torch.float32)) * scale
        rows = torch.tanh(rows) if squash else rows
        rows = rows if extra is None else rows + extra
        return rows.repeat(repeats, 1) if mode == "repeat" else rows


class DropPath(nn.Module):
    """timm's."""

    def __init__(self, drop, scale_by_keep):
        super().__init__()
        self.keep, self.scale_by_keep = 1 - drop, scale_by_keep

    def forward(self, x):
        if not self.training:
            return x
        random_tensor = x.new_empty((x.shape[0],) + (1,) * (x.ndim - 1)).bernoulli_(self.keep)
        if self.scale_by_keep:
            random_tensor.div_(self.keep)
        return x * random_tensor


class Paths(nn.Module):
    def __init__(self):
        super().__init__()
        self.scaled, self.plain = DropPath(0.25, True), DropPath(0.25, False)

    def forward(self, x):
        return self.scaled(x), self.plain(x)


class Mixed(nn.Module):
    """Dtypes that differ from that of the parameters; batch norm without running statistics."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 4)
        self.norm = nn.BatchNorm1d(4, track_running_stats=False)
        self.register_buffer("grid", torch.arange(4, dtype=torch.float64) / 3, persistent=False)
        self.register_buffer("steps", torch.arange(1.0).expand(4), persistent=False)
        self.weights = torch.arange(4, dtype=torch.float64) / 7

    def forward(self, x):
        return self.norm(self.linear(x)), self.grid + self.weights, self.steps * 2


class Waves(nn.Module):
    """Complex parameters alone, and a constant."""

    def __init__(self):
        super().__init__()
        self.amplitude = nn.Parameter(torch.tensor([1 + 1j, 2 - 1j]))
        self.phase = torch.tensor([0.5, 2.0])

    def forward(self, x):
        return (x * self.phase * self.amplitude).abs()


class Copies(nn.Module):
    """run_decompositions() makes an operator without a formula of the assignment."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 4)

    def forward(self, x):
        hidden = self.linear(x)
        hidden[:, 1] = hidden[:, 2]
        counts = torch.arange(4)
        counts[1] = counts[2]
        return hidden * counts


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.grow, self.norm, self.drop, self.shrink = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 4)

    def forward(self, x):
        return x + self.shrink(self.drop(torch.relu_(self.norm(self.grow(x)))))


class Blocks(nn.Module):
    """Repeated blocks, and tied weights around them."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head.weight = self.embed.weight

    def forward(self, x):
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Changing(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x):
        return self.linear(torch.relu_(x))


class Odd(nn.Module):
    """Modules that change their input, one that runs twice, and blocks inside of a region."""

    def __init__(self):
        super().__init__()
        self.changing = nn.ModuleList(Changing() for _ in range(2))
        self.shared = nn.Linear(3, 3)
        self.inside = nn.ModuleList(nn.Linear(3, 3) for _ in range(2))

    def forward(self, x):
        x = self.shared(self.changing[1](self.changing[0](self.shared(x))))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            for layer in self.inside:
                x = layer(x)
        return x


def fill(model):
    with torch.no_grad():
        for tensor in model.parameters():
            tensor.copy_((torch.arange(tensor.numel()) / 8).reshape(tensor.shape))
    return model


def save(name, model, args, dynamic_shapes, kwargs=None, decompose=False):
    if sys.argv[1:] and name not in sys.argv[1:]:
        return
    program = torch.export.export(model, args, kwargs, dynamic_shapes=dynamic_shapes)
    if decompose:
        program = program.run_decompositions({})
    for module in program.graph_module.modules():
        for node in module.graph.nodes if hasattr(module, "graph") else ():
            # Without the folders of the machine that runs this.
            node.meta["stack_trace"] = re.sub(r'File "[^"]*/(site-packages/|golden/)', 'File "', node.meta.get("stack_trace") or "")
    torch.export.save(program, HERE / f"{name}.pt2")
    with zipfile.ZipFile(HERE / f"{name}.pt2") as archive:
        (CORPUS / "exported_program").mkdir(exist_ok=True)
        (CORPUS / "exported_program" / ("hostile_" * (name == "conditional") + name)).write_bytes(archive.read(f"{name}/models/model.json"))


rows = ({0: BATCH},)
save("line", fill(nn.Linear(1, 1)), (torch.ones(4, 1),), rows)
save("net", fill(Net()), (torch.ones(4, 3),), rows)
save("evaluated", fill(Net()).eval(), (torch.ones(4, 3),), rows)
save("pair", fill(Pair()), (torch.ones(4, 3), (torch.ones(8),)), {"x": {0: BATCH}, "extra": ({0: 2 * BATCH},), "weight": None},
     {"weight": torch.tensor(3.0)})
save("conditional", Conditional(), (torch.ones(4, 3),), rows)
save("random", Random(), (torch.ones(4, 3),), rows)
torch.manual_seed(0)
save("surrogate", nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 1)), (torch.ones(4, 2),), ({0: torch.export.Dim("faces", min=1)},))
save("functional", fill(Functional()), (torch.ones(4, 3), torch.zeros(3)), {"x": {0: BATCH}, "total": None}, decompose=True)
save("counter", fill(Counter()), (torch.ones(4, 1),), rows)
save("numbers", fill(Numbers()), (torch.ones(4, 3), 3, torch.tensor(0.5)), {"x": {0: BATCH}, "repeats": torch.export.Dim.DYNAMIC, "threshold": None})
save("fixed", fill(Fixed()), (torch.ones(4, 3, dtype=torch.bool), True), {"mask": {0: BATCH}, "squash": None, "scale": None, "repeats": None, "mode": None, "extra": None},
     {"scale": 0.5, "repeats": 2, "mode": "repeat", "extra": None})
save("paths", Paths(), (torch.ones(4, 3),), rows)
save("mixed", fill(Mixed()), (torch.ones(4, 3),), rows, decompose=True)
save("waves", Waves(), (torch.ones(2),), None)
save("copies", fill(Copies()), (torch.ones(4, 3),), rows, decompose=True)
OLDER = next((f"net_2_{minor}" for minor in range(11, 15) if torch.__version__.startswith(f"2.{minor}.")), None)
if OLDER:
    save(OLDER, fill(Net()), (torch.ones(4, 3),), rows)
save("blocks", fill(Blocks()), (torch.ones(4, 4),), rows)
save("odd", fill(Odd()), (torch.ones(4, 3),), rows)
