#!/usr/bin/env python3
"""Writes the files in the folder of this script, and tests/fuzz/pickle, with PyTorch 2.11.

Values are 0, 1, 2, ... so that the test can say what they are without reading them
from another file. The corpus holds the pickles of these files, and hostile ones.
"""

import collections
import pathlib
import pickle
import struct
import zipfile

import torch

HERE = pathlib.Path(__file__).resolve().parent
CORPUS = HERE.parents[2] / "fuzz" / "pickle"

DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
    torch.complex64, torch.complex128,
    torch.uint16, torch.uint32, torch.uint64, torch.float8_e5m2, torch.float8_e4m3fn,
]


def count(*sizes, dtype=torch.float32):
    return torch.arange(torch.Size(sizes).numel()).reshape(sizes).to(dtype)


def every_kind():
    """Tensors of each dtype and with each layout in their storage."""
    tensors = collections.OrderedDict((str(dtype).removeprefix("torch."), count(2, 3, dtype=dtype)) for dtype in DTYPES)
    grid = count(4, 5)
    parameter = torch.nn.Parameter(count(2))
    parameter.origin = "an attribute"
    tensors |= {
        "scalar": torch.tensor(3.5),
        "empty": torch.zeros(0, 4),
        "grid": grid,
        "tied": grid,
        "transposed": grid.t(),
        "inner": grid[1:3, 2:],
        "expanded": torch.ones(1).expand(4, 3),
        "channels_last": count(2, 3, 4, 4).to(memory_format=torch.channels_last),
        "conjugate": torch.complex(count(3), count(3)).conj(),
        "negative": torch.complex(count(3), count(3)).conj().imag,
        "parameter": torch.nn.Parameter(count(3)),
        "with_attribute": parameter,
    }
    return tensors


def network():
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))
    for tensor in model.state_dict().values():
        tensor.copy_(count(*tensor.shape, dtype=tensor.dtype))
    return model


class Tied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = torch.nn.Linear(2, 2, bias=False)
        self.decoder = torch.nn.Linear(2, 2, bias=False)
        self.decoder.weight = self.encoder.weight
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        if self.training:
            self.calls = self.calls + 1  # replaces the tensor of the buffer
        return self.decoder(torch.relu(self.encoder(x)))


class TwoOutputs(torch.nn.Module):
    def forward(self, x):
        return x, x


def training_state(model):
    """What a training script saves in addition to its weights."""
    return {
        "epoch": 3, "lr": [0.1], "large": 2**70, "below": -(2**40), "none": None, "done": True,
        "set": {1, 2}, "bytes": b"xx", "device": torch.device("cpu"), "complex": 1j,
        "size": torch.Size([1, 2]), "dtype": torch.float32,
        "optimizer": {"state": {0: {"step": torch.tensor(1.0)}}, "param_groups": [{"betas": (0.9, 0.999)}]},
        "model_state_dict": model.state_dict(),
    }


def save_files():
    model, tensors = network(), every_kind()
    state = model.state_dict()
    for protocol in (2, 3, 4, 5):
        torch.save(tensors, HERE / f"every_kind_{protocol}.pt", pickle_protocol=protocol)
    torch.save(state, HERE / "network.pt")
    torch.save({f"module.{name}": tensor for name, tensor in state.items()}, HERE / "wrapped.pt")
    torch.save(training_state(model), HERE / "training.pt")
    torch.save((7, state), HERE / "tuple.pt")
    torch.save(state, HERE / "legacy.pt", _use_new_zipfile_serialization=False)
    torch.save(model, HERE / "whole_module.pt")
    torch.save(torch.ones(2), HERE / "single.pt")
    torch.save({"encoder": state, "decoder": state}, HERE / "two.pt")
    torch.jit.script(model).save(HERE / "script.pt")
    torch.jit.script(Tied()).save(HERE / "tied_script.pt")
    torch.jit.script(TwoOutputs()).save(HERE / "two_outputs.pt")
    big_endian(HERE / "network.pt", HERE / "big_endian.pt")


def big_endian(source, target):
    """The same file as a big-endian machine would write it."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            if name.endswith("/byteorder"):
                content = b"big"
            elif "/data/" in name:
                width = 8 if len(content) == 8 and name.endswith("/6") else 4
                content = b"".join(content[i : i + width][::-1] for i in range(0, len(content), width))
            new.writestr(name, content)


def save_corpus():
    CORPUS.mkdir(exist_ok=True)
    for name in ("every_kind_2", "every_kind_5", "network", "training", "tuple", "whole_module"):
        with zipfile.ZipFile(HERE / f"{name}.pt") as archive:
            (CORPUS / name).write_bytes(archive.read(f"{name}/data.pkl"))
    for name, content in hostile().items():
        (CORPUS / f"hostile_{name}").write_bytes(content)


def hostile():
    begin = b"\x80\x02"
    tensor = (b"ctorch._utils\n_rebuild_tensor_v2\n((X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\x000"
              b"X\x03\0\0\0cpuK\x06tQ")
    rest = b"\x89ccollections\nOrderedDict\n)RtR."
    wide = struct.pack("<q", 2**62)
    return {
        "cut": begin + b"X\x10\0\0\0abc",
        "long_text": begin + b"X\xff\xff\xff\xffabc.",
        "long_text8": b"\x80\x04\x8d" + b"\xff" * 8 + b"abc.",
        "long_number": begin + b"\x8b\xff\xff\xff\xff\x01.",
        "frame": b"\x80\x04\x95" + b"\xff" * 8 + b"N.",
        "deep_tuples": begin + b")" + b"\x85" * 10000 + b".",
        "deep_marks": begin + b"(" * 10000 + b"t" * 10000 + b".",
        "wide_tuples": begin + b")" + b"2\x86" * 5000 + b".",
        "cycle_list": begin + b"]q\0h\0a.",
        "cycle_dict": begin + b"}q\0X\x05\0\0\0modelh\0s.",
        "memo_missing": begin + b"h\x07.",
        "memo_far": begin + b"Nr\xff\xff\xff\xffj\xff\xff\xff\xff.",
        "memo_many": begin + b"N" + b"".join(b"r" + struct.pack("<I", i * 65537) for i in range(2000)) + b".",
        "empty_stack": begin + b"0.",
        "under_mark": begin + b"N(0.",
        "odd_items": begin + b"}(Nu.",
        "code": begin + b"cos\nsystem\nX\x04\0\0\0true\x85R.",
        "call_text": begin + b"X\x01\0\0\0a)R.",
        "call_size": begin + b"ctorch\nSize\n)R.",
        "from_type_chain": begin + b")" + b"q\0" + b"0(ctorch._tensor\n_rebuild_from_type_v2\nNh\0Ntq\0" * 1000
        + b"0ctorch._tensor\n_rebuild_from_type_v2\nh\0R.",
        "protocol_0": b"I1\n.\n",
        "protocol_9": b"\x80\x09N.",
        "sizes_overflow": begin + tensor + b"K\0(\x8a\x08" + wide + b"\x8a\x08" + wide + b"t(K\x01K\x01t" + rest,
        "sizes_negative": begin + tensor + b"K\0(J\xff\xff\xff\xfft(K\x01t" + rest,
        "offset_far": begin + tensor + b"\x8a\x08" + wide + b"(K\x02t(K\x01t" + rest,
        "sizes_and_strides": begin + tensor + b"K\0(K\x02t(K\x01K\x01t" + rest,
        "stride_zero": begin + tensor + b"K\0(\x8a\x08" + wide + b"t(K\0t" + rest,
    }


if __name__ == "__main__":
    assert pickle.HIGHEST_PROTOCOL >= 5
    save_files()
    save_corpus()
