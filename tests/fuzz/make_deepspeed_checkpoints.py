#!/usr/bin/env python3
"""Makes tests/fuzz/deepspeed_checkpoint with DeepSpeed 0.19.6:

    .deps/peers/bin/python tests/fuzz/make_deepspeed_checkpoints.py

stage0 to stage3 are what save_checkpoint was given, with one checkpoint of two ranks, and
state.safetensors: what DeepSpeed says is in it. The others are NAME/STAGE/FILE: a file to
put in the place of the one in STAGE. With those whose names begin with hostile_ it is not
imported.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import torch

HERE = pathlib.Path(__file__).parent
CORPUS = HERE / "deepspeed_checkpoint"
PROGRAM = HERE.parent / "peers" / "programs" / "deepspeed_training.py"
MODEL = "mp_rank_00_model_states.pt"
OPTIMIZER = "zero_pp_rank_0_mp_rank_00_optim_states.pt"


class Runs:
    """When Python unpickles it, it creates a file."""

    def __reduce__(self):
        return os.system, ("touch executed",)


def save_honest():
    zero = {"lr": 0.01, "weight_decay": 0.01, "clip": 1.0, "groups": True}
    cases = {"stage0": {"stage": 0, "dtype": "float32"}, "stage1": {"stage": 1, "dtype": "float32"},
             "stage2": {"stage": 2, "dtype": "float16"}, "stage3": {"stage": 3, "dtype": "bfloat16"}}
    with tempfile.TemporaryDirectory() as folder:
        files = []
        for name, kind in cases.items():
            file = pathlib.Path(folder) / name / "case.json"
            file.parent.mkdir()
            file.write_text(json.dumps({"seed": 7, "model": "odd", "zero": {**zero, **kind}, "batch": [4, 5],
                                        "classes": 7, "steps": 3, "save_at": 3}))
            files.append(file)
        environment = dict(os.environ, WORLD_SIZE="2", STORE_FILE=f"{folder}/store")
        ranks = [subprocess.Popen([sys.executable, PROGRAM, *files],
                                  env=dict(environment, RANK=str(rank), LOCAL_RANK=str(rank))) for rank in range(2)]
        assert [rank.wait() for rank in ranks] == [0, 0]
        for name in cases:
            saved = pathlib.Path(folder) / name
            shutil.copytree(saved / "saved", CORPUS / name, ignore=shutil.ignore_patterns("zero_to_fp32.py"))
            shutil.copy(saved / "state.safetensors", CORPUS / name)
            (CORPUS / name / "latest").write_text("global_step3\n")  # text files here end with a line


def change(name, file, edit, of="stage1"):
    """A copy of a valid checkpoint with one file changed by `edit`."""
    content = torch.load(CORPUS / of / "global_step3" / file, weights_only=False)
    edit(content)
    (CORPUS / name / of).mkdir(parents=True)
    torch.save(content, CORPUS / name / of / file)


def make_others():
    def cycle(content):
        content["ds_config"]["itself"] = content["ds_config"]
        content["mine"] = content

    change("calls_code", MODEL, lambda content: content.update(mine=Runs()))
    change("cycle", MODEL, cycle)
    change("hostile_code", MODEL, lambda content: content.update(module=Runs()))
    change("hostile_code_in_optimizer", OPTIMIZER, lambda content: content.update(optimizer_state_dict=Runs()))
    change("hostile_shapes", MODEL,
           lambda content: content.update(param_shapes=[{"embed.weight": torch.Size([2**40, 2**40])}] * 2))
    change("hostile_one_shape", MODEL,
           lambda content: content["param_shapes"][0].update({"embed.weight": torch.Size([7, 500])}))
    change("hostile_many_ranks", OPTIMIZER,
           lambda content: content["optimizer_state_dict"].update(partition_count=[10**9, 10**9]))
    change("hostile_stage", OPTIMIZER, lambda content: content["optimizer_state_dict"].update(zero_stage=9))
    change("hostile_groups", OPTIMIZER,
           lambda content: content["optimizer_state_dict"]["base_optimizer_state"]["param_groups"].pop())
    change("hostile_step", OPTIMIZER,
           lambda content: content["optimizer_state_dict"]["base_optimizer_state"]["state"][0].update(step=float("nan")))
    change("hostile_short", OPTIMIZER,
           lambda content: content["optimizer_state_dict"]["base_optimizer_state"]["state"][0].update(
               exp_avg=torch.zeros(3)))
    change("hostile_name", MODEL,
           lambda content: content.update(shared_params={"head.weight": ["embed.weight"]}))
    change("hostile_model_parallel", MODEL, lambda content: content.update(mp_world_size=2))
    change("hostile_pipeline", MODEL, lambda content: content.update(module=None))
    change("hostile_frozen", "zero_pp_rank_1_mp_rank_00_model_states.pt",
           lambda content: content["frozen_param_fragments"].pop("frozen.weight"), of="stage3")


if __name__ == "__main__":
    shutil.rmtree(CORPUS, ignore_errors=True)
    CORPUS.mkdir()
    save_honest()
    make_others()
