"""Python's safetensors reads Lockstep's shards, and Lockstep reads its files: the same bits for every dtype."""

import subprocess

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e5m2, torch.float8_e4m3fn,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint32, torch.uint64,
    torch.bool, torch.complex64,
]


def checkpoint_files(bin_dir, *arguments):
    done = subprocess.run([bin_dir / "test" / "checkpoint_files", *arguments], text=True, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done


def bits(tensor):
    return tensor.reshape(-1).contiguous().view(torch.uint8) if tensor.numel() else tensor.reshape(-1)


def assert_same(ours, expected):
    assert ours.keys() == expected.keys()
    for name, tensor in expected.items():
        assert ours[name].dtype == tensor.dtype, name
        assert ours[name].shape == tensor.shape, name
        assert torch.equal(bits(ours[name]), bits(tensor)), name


def tensor_of(dtype, shape):
    generator = torch.Generator().manual_seed(7)
    if dtype is torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    size = torch.empty(0, dtype=dtype).element_size()
    count = torch.Size(shape).numel() * size
    return torch.randint(0, 256, (count,), generator=generator, dtype=torch.uint8).view(dtype).reshape(shape)


@pytest.mark.parametrize("shape", [(5, 7), (3,), (), (2, 1, 4, 3)])
def test_every_dtype_there_and_back(bin_dir, tmp_path, shape):
    expected = {str(dtype): tensor_of(dtype, shape) for dtype in DTYPES}
    save_file(expected, tmp_path / "python.safetensors", metadata={"made": "by Python"})
    checkpoint_files(bin_dir, "copy", tmp_path / "python.safetensors", tmp_path / "ours")
    shard = tmp_path / "ours" / "step-0000000001" / "shard-00000-of-00001.safetensors"
    assert_same(load_file(shard), expected)
    with safe_open(shard, framework="pt") as opened:
        assert opened.metadata() == {"format": "pt"}


def test_empty_tensors_and_odd_names(bin_dir, tmp_path):
    expected = {"empty": torch.empty(0, 3), "λ \"x\"\n": torch.ones(2), "a/b.c": torch.zeros(1, dtype=torch.int8)}
    save_file(expected, tmp_path / "python.safetensors")
    checkpoint_files(bin_dir, "copy", tmp_path / "python.safetensors", tmp_path / "ours")
    assert_same(load_file(tmp_path / "ours" / "step-0000000001" / "shard-00000-of-00001.safetensors"), expected)


def test_no_tensor_at_all(bin_dir, tmp_path):
    save_file({}, tmp_path / "python.safetensors")
    checkpoint_files(bin_dir, "copy", tmp_path / "python.safetensors", tmp_path / "ours")
    assert load_file(tmp_path / "ours" / "step-0000000001" / "shard-00000-of-00001.safetensors") == {}


def test_our_own_values_over_two_shards(bin_dir, tmp_path):
    checkpoint_files(bin_dir, "make", tmp_path)
    numbers = torch.arange(12.0).view(3, 4)
    flat = torch.arange(10)
    folder = tmp_path / "step-0000000001"
    assert_same(load_file(folder / "shard-00000-of-00002.safetensors"), {
        "float": numbers, "half": numbers.half(), "transposed": numbers.t(), "empty": torch.empty(0, 3),
        "scalar": torch.tensor(2.5, dtype=torch.float64), "flat[0:6]": flat[:6]})
    assert_same(load_file(folder / "shard-00001-of-00002.safetensors"), {"mask": numbers > 5, "flat[6:10]": flat[6:]})
