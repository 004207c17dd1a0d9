"""Trains and saves with DeepSpeed, or with DistributedDataParallel for comparison: see
test_deepspeed_training.py and test_deepspeed_import.py.

    deepspeed_training.py CASE.json...

RANK and WORLD_SIZE set the rank; the ranks connect through STORE_FILE. One process runs many cases,
because importing DeepSpeed takes seconds. For each case, rank R writes losses.R.json, and rank 0
writes weights.safetensors (float32). With "save_at" it also writes a DeepSpeed checkpoint to `saved`,
and its contents according to DeepSpeed's own functions: state.safetensors from the engine, and from
stage 1 on fp32.safetensors from the files.
"""

import json
import os
import pathlib
import sys

os.environ["DS_ACCELERATOR"] = "cpu"

import deepspeed
import torch
import torch.distributed as dist
import torch.nn.functional as F
from deepspeed.accelerator import get_accelerator
from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state
from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint
from model_training import make_batch, make_model
from rank_cases import leave_group
from safetensors.torch import save_file
from torch import nn

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class Odd(nn.Module):
    """A model with tied and frozen weights, buffers, and sizes that are not divisible by the ranks."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.full((), 7, dtype=torch.int64))
        self.register_buffer("scale", torch.tensor([1.5, -2.0, 0.25]))
        self.embed = nn.Linear(5, 7, bias=False)
        self.norm = nn.LayerNorm(7)
        self.middle = nn.Linear(7, 6)
        self.frozen = nn.Linear(6, 5)
        self.head = nn.Linear(5, 7, bias=False)
        self.head.weight = self.embed.weight
        for parameter in self.frozen.parameters():
            parameter.requires_grad = False

    def forward(self, x):
        return self.head(self.frozen(torch.relu(self.middle(self.norm(self.embed(x))))))


def parameter_groups(model, decay):
    """Two groups: weight decay applies to matrices, but not to vectors."""
    trained = [p for p in model.parameters() if p.requires_grad]
    return [{"params": [p for p in trained if p.dim() > 1], "weight_decay": decay},
            {"params": [p for p in trained if p.dim() == 1], "weight_decay": 0.0}]


def configuration(spec):
    zero = spec["zero"]
    optimizer = {"lr": zero["lr"], "weight_decay": zero["weight_decay"], "torch_adam": True}
    config = {"train_micro_batch_size_per_gpu": spec["batch"][0], "gradient_clipping": zero["clip"],
              "optimizer": {"type": "AdamW", "params": optimizer},
              "zero_optimization": {"stage": zero["stage"], "stage3_param_persistence_threshold": 0,
                                    **zero.get("options", {})},
              **zero.get("config", {})}
    if zero["dtype"] == "bfloat16":
        config["bf16"] = {"enabled": True}
    if zero["dtype"] == "float16":
        config["fp16"] = {"enabled": True, **zero.get("fp16", {})}
    return config


def whole_master(optimizer, parameter):
    """At stage 0: the float32 master of a parameter, and the optimizer that updates it."""
    for own, masters in zip(getattr(optimizer, "fp16_groups", []), getattr(optimizer, "fp32_groups", [])):
        for candidate, master in zip(own, masters):
            if candidate is parameter:
                return master, optimizer.optimizer
    return parameter, optimizer


def state_of(engine, model, spec):
    """Masters and moments by name, from DeepSpeed's public functions. Collective."""
    state = {}
    if spec["zero"]["stage"] in (1, 2):
        # DeepSpeed looks for the moments once, after the first of several groups was updated.
        engine.optimizer._hp_optimizer_states_linked = False
        engine.optimizer._lazy_init_hp_params_optimizer_state()
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        if spec["zero"]["stage"] > 0:
            state[f"master/{name}"] = safe_get_full_fp32_param(parameter)
            for field in ("exp_avg", "exp_avg_sq"):
                state[f"{field}/{name}"] = safe_get_full_optimizer_state(parameter, field)
        else:
            master, optimizer = whole_master(engine.optimizer, parameter)
            state[f"master/{name}"] = master.detach()
            for field in ("exp_avg", "exp_avg_sq"):
                state[f"{field}/{name}"] = optimizer.state[master][field]
    return {name: tensor.clone().contiguous() for name, tensor in state.items()}


def weights_of(model, stage):
    """All weights in float32. Collective."""
    weights = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        # Gather one parameter at a time: of several, DeepSpeed waits for the last gather only. NCCL ends them in
        # order, Gloo does not, and a weight is read before it is there, in about one of fifty gathers.
        with deepspeed.zero.GatheredParameters([tensor], enabled=stage == 3 and isinstance(tensor, nn.Parameter)):
            weights[name] = tensor.detach().clone().float().contiguous()
    return weights


def loss_of(output, classes):
    return F.cross_entropy(output.float(), classes)


def train_deepspeed(spec, model, folder, rank, size):
    """Returns the loss of each step, and the loss scale and the number of skipped steps after it."""
    zero = spec["zero"]
    groups = parameter_groups(model, zero["weight_decay"]) if zero.get("groups") else model.parameters()
    engine, *_ = deepspeed.initialize(model=model, model_parameters=groups, config=configuration(spec))
    losses, scales = [], []
    for step in range(spec["steps"]):
        if step == spec.get("save_at"):
            save(engine, model, spec, folder, rank)
        inputs, classes = make_batch(spec, step * size + rank)
        loss = loss_of(engine(inputs.to(DTYPES[zero["dtype"]])), classes)
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
        if zero["dtype"] == "float16":
            scales.append([engine.optimizer.loss_scale, engine.skipped_steps])
    if spec["steps"] == spec.get("save_at"):
        save(engine, model, spec, folder, rank)
    if rank == 0:
        (folder / "scales.json").write_text(json.dumps(scales))
    return losses


def save(engine, model, spec, folder, rank):
    engine.save_checkpoint(folder / "saved", client_state={"epoch": 3, "when": torch.device("cpu")})
    state = state_of(engine, model, spec)
    if rank == 0:
        save_file(state, folder / "state.safetensors")
        if spec["zero"]["stage"] > 0 and spec["zero"].get("mergeable", True):
            merged = get_fp32_state_dict_from_zero_checkpoint(folder / "saved")
            save_file({name: tensor.clone() for name, tensor in merged.items()}, folder / "fp32.safetensors")
    dist.barrier()


def train_ddp(spec, model, rank, size):
    zero = spec["zero"]
    parallel = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=zero["lr"], weight_decay=zero["weight_decay"])
    losses = []
    for step in range(spec["steps"]):
        inputs, classes = make_batch(spec, step * size + rank)
        optimizer.zero_grad()
        loss = loss_of(parallel(inputs), classes)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), zero["clip"])
        optimizer.step()
        losses.append(loss.item())
    return losses


def run_case(file, rank, size):
    spec = json.loads(file.read_text())
    torch.manual_seed(spec["seed"])
    model = Odd() if spec["model"] == "odd" else make_model(spec["model"], spec["options"])
    if spec["zero"]["stage"] == "ddp":
        losses = train_ddp(spec, model, rank, size)
    else:
        losses = train_deepspeed(spec, model, file.parent, rank, size)
    (file.parent / f"losses.{rank}.json").write_text(json.dumps(losses))
    weights = weights_of(model, spec["zero"]["stage"])
    if rank == 0:
        save_file(weights, file.parent / "weights.safetensors")


def main():
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    # DeepSpeed assumes that CPUs do not support float16; PyTorch supports it on all CPUs.
    type(get_accelerator()).is_fp16_supported = lambda self: True
    dist.init_process_group("gloo", f"file://{os.environ['STORE_FILE']}", rank=rank, world_size=size)
    deepspeed.init_distributed("gloo", auto_mpi_discovery=False, verbose=False)
    for case in sys.argv[1:]:
        run_case(pathlib.Path(case), rank, size)
    leave_group()


if __name__ == "__main__":
    main()
