"""`lockstep ckpt import` of checkpoints that DeepSpeed saved in this test: weights, masters and moments
equal DeepSpeed's bit for bit."""

import functools
import json
import subprocess

import pytest
import torch
from deepspeed_runs import BIN, import_checkpoint, run_deepspeed
from safetensors.torch import load_file

CASES = {
    f"{dtype}_stage{stage}": {"model": "odd", "batch": [4, 5], "classes": 7, "steps": 3, "save_at": 3,
                              "zero": {"stage": stage, "dtype": dtype, "lr": 0.01, "weight_decay": 0.1, "clip": 1.0,
                                       "groups": True}}
    for dtype in ("float32", "bfloat16", "float16") for stage in (0, 1, 2, 3)
}
CASES["float32_stage3"]["zero"]["options"] = {"sub_group_size": 40}  # more flat groups than groups of options
# An optimizer class of DeepSpeed whose files DeepSpeed's script does not support.
CASES["bfloat16_sums"] = {**CASES["bfloat16_stage1"], "zero": {
    **CASES["bfloat16_stage1"]["zero"], "config": {"data_types": {"grad_accum_dtype": "fp32"}}, "mergeable": False}}
ROUND_ROBIN = {**CASES["float32_stage2"], "zero": {**CASES["float32_stage2"]["zero"],
                                                   "options": {"round_robin_gradients": True}}}


@pytest.fixture(scope="module", params=[1, 2], ids=["one_rank", "two_ranks"])
def saved(request, tmp_path_factory):
    return run_deepspeed(tmp_path_factory.mktemp("deepspeed"), {**CASES, "round_robin": ROUND_ROBIN},
                         ranks=request.param)


@pytest.fixture(scope="module")
def imported(saved, tmp_path_factory):
    """Returns the tensors and metadata of a case, and the output of the command."""
    folder = tmp_path_factory.mktemp("imported")

    @functools.cache
    def of(name):
        printed = import_checkpoint(saved / name / "saved", folder / name)
        step, = (folder / name).glob("step-*")
        tensors = {}
        for shard in step.glob("*.safetensors"):
            tensors.update(load_file(shard))
        return tensors, json.loads((step / "manifest.json").read_text())["metadata"], printed

    return of


@pytest.mark.parametrize("name", CASES)
def test_masters_moments_and_steps_are_those_of_the_engine(saved, imported, name):
    zero = CASES[name]["zero"]
    tensors, metadata, printed = imported(name)
    assert "left behind: when" in printed
    state = load_file(saved / name / "state.safetensors")
    assert len(state) == 15
    for key, expected in state.items():
        kind, parameter = key.split("/", 1)
        if kind != "master":
            assert torch.equal(tensors[f"lockstep/optimizer/{parameter}/{kind}"], expected), key
            continue
        weight = tensors[f"model.{parameter}"]
        assert weight.dtype == getattr(torch, zero["dtype"])
        assert torch.equal(weight, expected.to(weight.dtype)), key
        if zero["dtype"] != "float32":
            assert torch.equal(tensors[f"lockstep/master/{parameter}"], expected), key
    optimizer = metadata["optimizer"]
    assert optimizer["class"] == "AdamW"
    assert [group["options"]["weight_decay"] for group in optimizer["groups"]] == [0.1, 0.0]
    assert len({json.dumps(parameter) for parameter in optimizer["state"].values()}) == 1
    assert ("scaler" in metadata) == (zero["dtype"] == "float16")


@pytest.mark.parametrize("name", [name for name in CASES if not name.endswith(("stage0", "sums"))])
def test_float32_weights_are_those_of_zero_to_fp32(saved, imported, name):
    tensors, _, _ = imported(name)
    weights = {key.removeprefix("model."): tensor for key, tensor in tensors.items() if key.startswith("model.")}
    merged = load_file(saved / name / "fp32.safetensors")
    # At stage 1 DeepSpeed's script omits frozen parameters.
    assert set(merged) | {"frozen.weight", "frozen.bias"} == set(weights)
    for key, expected in merged.items():
        owner = "embed.weight" if key == "head.weight" else key
        tensor = tensors.get(f"lockstep/master/{owner}", weights[key])
        assert torch.equal(tensor.float(), expected.float()), key
    assert weights["seen"].dtype == torch.int64 and weights["seen"] == 7
    assert weights["frozen.weight"].shape == (5, 6)


def test_a_file_of_float32_weights(saved, tmp_path):
    name = "bfloat16_stage3"
    import_checkpoint(saved / name / "saved", tmp_path / "weights.safetensors", "--dtype", "float32")
    weights = load_file(tmp_path / "weights.safetensors")
    merged = load_file(saved / name / "fp32.safetensors")
    assert set(weights) == set(merged)
    for key, expected in merged.items():
        assert torch.equal(weights[key].float(), expected), key


def test_parameters_in_an_order_of_their_own(saved, imported):
    """DeepSpeed's engine then reports wrong moments, so the expected ones come from another run."""
    tensors, metadata, _ = imported("round_robin")
    for key, expected in load_file(saved / "round_robin" / "weights.safetensors").items():
        assert torch.equal(tensors[f"model.{key}"].float(), expected), key
    for key, expected in load_file(saved / "float32_stage2" / "state.safetensors").items():
        kind, parameter = key.split("/", 1)
        if kind != "master":
            torch.testing.assert_close(tensors[f"lockstep/optimizer/{parameter}/{kind}"], expected, rtol=0, atol=1e-7)
    assert metadata["optimizer"]["groups"][1]["parameters"] == ["norm.weight", "norm.bias", "middle.bias"]


def test_a_folder_without_its_last_file_is_refused_by_name(saved, tmp_path):
    folder = saved / "bfloat16_stage3" / "saved" / "global_step3"
    last = max(folder.glob("bf16_zero_pp_rank_*"))
    content = last.read_bytes()
    try:
        last.write_bytes(content[:-100])
        process = subprocess.run([BIN / "lockstep", "ckpt", "import", folder.parent, "--to", tmp_path / "run"],
                                 text=True, capture_output=True)
    finally:
        last.write_bytes(content)
    assert process.returncode == 2 and last.name in process.stderr
    assert not (tmp_path / "run").exists()
