"""Schedules and the loss scale against DeepSpeed's own, optimizers against PyTorch's or their formulas.

DeepSpeed's schedules and its loss scaler are plain Python. Its CPU optimizers are C++ that is
compiled when it is first used, in another order of operations than LibTorch's; ours have
LibTorch's bits, so those are what Adam is compared with.
"""

import os
import random
import struct

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import pytest
import torch
from deepspeed.runtime import lr_schedules
from deepspeed.runtime.fp16 import loss_scaler

STEPS = 300
BASE_LRS = [0.1, 0.037]

SCHEDULES = {
    "warmup-log": ("WarmupLR", {"warmup_num_steps": 40}),
    "warmup-linear": ("WarmupLR", {"warmup_min_lr": 1e-5, "warmup_max_lr": 0.02, "warmup_num_steps": 77,
                                   "warmup_type": "linear"}),
    "warmup-of-one": ("WarmupLR", {"warmup_num_steps": 1, "warmup_max_lr": 0.3}),
    "decay-log": ("WarmupDecayLR", {"total_num_steps": 250, "warmup_num_steps": 31}),
    "decay-linear": ("WarmupDecayLR", {"total_num_steps": 300, "warmup_num_steps": 50, "warmup_type": "linear",
                                       "warmup_min_lr": 0.001, "warmup_max_lr": 0.3}),
    "decay-short": ("WarmupDecayLR", {"total_num_steps": 20, "warmup_num_steps": 60}),
    "cosine-log": ("WarmupCosineLR", {"total_num_steps": 280, "warmup_num_steps": 33}),
    "cosine-linear": ("WarmupCosineLR", {"total_num_steps": 200, "warmup_num_steps": 20, "warmup_type": "linear",
                                         "warmup_min_ratio": 0.1, "cos_min_ratio": 0.03}),
    "cosine-short": ("WarmupCosineLR", {"total_num_steps": 10, "warmup_num_steps": 20}),
    "range": ("LRRangeTest", {"lr_range_test_step_size": 7, "lr_range_test_step_rate": 0.3}),
    "range-stairs": ("LRRangeTest", {"lr_range_test_min_lr": 0.02, "lr_range_test_step_size": 13,
                                     "lr_range_test_staircase": True}),
    "cycle": ("OneCycle", {"cycle_min_lr": 0.001, "cycle_max_lr": 0.1, "cycle_first_step_size": 60}),
    "cycle-uneven": ("OneCycle", {"cycle_min_lr": 0.001, "cycle_max_lr": 0.1, "cycle_first_step_size": 37,
                                  "cycle_second_step_size": 111, "cycle_min_mom": 0.85, "cycle_max_mom": 0.99}),
    "cycle-decay": ("OneCycle", {"cycle_min_lr": 0.001, "cycle_max_lr": 0.1, "cycle_first_step_size": 50,
                                 "decay_lr_rate": 0.3, "decay_step_size": 9, "decay_mom_rate": 0.001}),
    "cycle-stairs": ("OneCycle", {"cycle_min_lr": 0.001, "cycle_max_lr": 0.1, "cycle_first_step_size": 70,
                                  "cycle_second_step_size": 30, "cycle_first_stair_count": 7,
                                  "cycle_second_stair_count": 3}),
    "cycle-still": ("OneCycle", {"cycle_min_lr": 0.001, "cycle_max_lr": 0.1, "cycle_first_step_size": 70,
                                 "cycle_first_stair_count": 5, "cycle_momentum": False}),
}


def schedule_trace(kind, params):
    """[[rate of each group..., beta1, beta2]] before each step."""
    optimizer = torch.optim.Adam([{"params": [torch.nn.Parameter(torch.zeros(1))], "lr": lr} for lr in BASE_LRS])
    scheduler = getattr(lr_schedules, kind)(optimizer, **params)
    rows = []
    for _ in range(STEPS):
        groups = optimizer.param_groups
        rows.append([group["lr"] for group in groups] + list(groups[0]["betas"]))
        scheduler.step()
    return rows


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedule(optim_trace, name):
    kind, params = SCHEDULES[name]
    got = optim_trace.ask(what="adam_schedule", schedule={"kind": kind, **params}, steps=STEPS, base_lrs=BASE_LRS)
    assert got == schedule_trace(kind, params)


SCALES = {
    "default": {"initial_scale_power": 16, "loss_scale_window": 1000, "hysteresis": 2,
                "consecutive_hysteresis": False, "min_loss_scale": 1},
    "short window": {"initial_scale_power": 10, "loss_scale_window": 7, "hysteresis": 3,
                     "consecutive_hysteresis": False, "min_loss_scale": 1},
    "consecutive": {"initial_scale_power": 10, "loss_scale_window": 5, "hysteresis": 2,
                    "consecutive_hysteresis": True, "min_loss_scale": 0.25},
    "no hysteresis": {"initial_scale_power": 4, "loss_scale_window": 11, "hysteresis": 1,
                      "consecutive_hysteresis": False, "min_loss_scale": 3},
}


def overflows(kind):
    generator = random.Random(kind)
    share = {"calm": 0.02, "rough": 0.2, "storm": 0.6, "collapse": 1.0}[kind]
    return [generator.random() < share for _ in range(STEPS)]


def scale_trace(options, schedule):
    scaler = loss_scaler.DynamicLossScaler(
        init_scale=2**options["initial_scale_power"], scale_window=options["loss_scale_window"],
        min_scale=options["min_loss_scale"], delayed_shift=options["hysteresis"],
        consecutive_hysteresis=options["consecutive_hysteresis"])
    scales = []
    for overflow in schedule:
        try:
            scaler.update_scale(overflow)
        except Exception as error:
            assert "already at minimum" in str(error)
            return {"scales": scales, "failed": len(scales)}
        scales.append(float(scaler.cur_scale))
    return {"scales": scales, "failed": None}


@pytest.mark.parametrize("kind", ["calm", "rough", "storm", "collapse"])
@pytest.mark.parametrize("name", SCALES)
def test_loss_scale(optim_trace, monkeypatch, kind, name):
    # DeepSpeed uses the process group only to decide which rank prints.
    monkeypatch.setattr(loss_scaler.dist, "get_rank", lambda: 0)
    schedule = overflows(kind)
    expected = scale_trace(SCALES[name], schedule)
    assert optim_trace.ask(what="deepspeed_scale", options=SCALES[name], overflows=schedule) == expected
    if kind == "collapse":
        assert expected["failed"] is not None


def values(count, numel, seed):
    """Gradients of many magnitudes, exactly float32."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(count, numel, generator=generator)
    return rows * 10.0 ** torch.randint(-6, 3, (count, numel), generator=generator)


def bits(row):
    return struct.pack(f"{len(row)}f", *row)


def ask(optim_trace, name, options, start, gradients):
    return optim_trace.ask(what="optimizer", optimizer=name, options=options, start=start.tolist(),
                           gradients=gradients.tolist())


# Not a multiple of 8: PyTorch rounds the elements after the last whole vector in another order.
NUMEL = 253


@pytest.mark.parametrize("adam_w_mode", [True, False])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("betas", [[0.9, 0.999], [0.3, 0.95]])
def test_adam(optim_trace, adam_w_mode, weight_decay, betas):
    torch.set_num_threads(1)  # PyTorch cuts a tensor into as many parts, of which each has such elements
    options = {"lr": 0.003, "betas": betas, "eps": 1e-8, "weight_decay": weight_decay}
    start, gradients = values(1, NUMEL, 1)[0], values(30, NUMEL, 2)
    weight = torch.nn.Parameter(start.clone())
    kind = torch.optim.AdamW if adam_w_mode else torch.optim.Adam
    optimizer = kind([weight], fused=True, **{**options, "betas": tuple(betas)})
    got = ask(optim_trace, "CpuAdam", {**options, "adam_w_mode": adam_w_mode}, start, gradients)
    for step, gradient in enumerate(gradients):
        weight.grad = gradient.clone()
        optimizer.step()
        assert bits(got[step]) == bits(weight.tolist()), f"step {step}"


def close(got, expected):
    torch.testing.assert_close(torch.tensor(got, dtype=torch.float64), expected.to(torch.float64), rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_adagrad(optim_trace, weight_decay):
    options = {"lr": 0.05, "eps": 1e-10, "weight_decay": weight_decay, "lr_decay": 0.01}
    start, gradients = values(1, 100, 3)[0].clamp(-1, 1), values(30, 100, 4).clamp(-1, 1)
    weight = torch.nn.Parameter(start.clone())
    optimizer = torch.optim.Adagrad([weight], **options)
    got = ask(optim_trace, "CpuAdagrad", options, start, gradients)
    for step, gradient in enumerate(gradients):
        weight.grad = gradient.clone()
        optimizer.step()
        close(got[step], weight.detach())


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_lion(optim_trace, weight_decay):
    options = {"lr": 0.01, "betas": [0.9, 0.99], "weight_decay": weight_decay}
    start, gradients = values(1, 100, 5)[0].clamp(-1, 1), values(30, 100, 6)
    got = ask(optim_trace, "Lion", options, start, gradients)
    weight, average = start.to(torch.float64), torch.zeros(100, dtype=torch.float64)
    for step, gradient in enumerate(gradients.to(torch.float64)):
        update = (0.9 * average + (1 - 0.9) * gradient).sign()
        weight = weight * (1 - 0.01 * weight_decay) - 0.01 * update
        average = 0.99 * average + (1 - 0.99) * gradient
        close(got[step], weight)


@pytest.mark.parametrize("options", [
    {"weight_decay": 0.1, "bias_correction": True, "eps_inside_sqrt": False, "max_coeff": 10.0, "min_coeff": 0.01},
    {"weight_decay": 0.0, "bias_correction": False, "eps_inside_sqrt": True, "max_coeff": 0.3, "min_coeff": 0.2},
])
def test_lamb(optim_trace, options):
    options = {"lr": 0.01, "betas": [0.9, 0.999], "eps": 1e-4, **options}
    start, gradients = values(1, 100, 7)[0].clamp(-1, 1), values(30, 100, 8).clamp(-1, 1)
    got = ask(optim_trace, "Lamb", options, start, gradients)
    weight = start.to(torch.float64)
    average, square = torch.zeros(100, dtype=torch.float64), torch.zeros(100, dtype=torch.float64)
    for step, gradient in enumerate(gradients.to(torch.float64), 1):
        average = 0.9 * average + (1 - 0.9) * gradient
        square = 0.999 * square + (1 - 0.999) * gradient * gradient
        inside = options["eps_inside_sqrt"]
        denominator = (square + 1e-4).sqrt() if inside else square.sqrt() + 1e-4
        update = average / denominator + options["weight_decay"] * weight
        ratio = min(max(weight.norm() / update.norm(), options["min_coeff"]), options["max_coeff"])
        size = 0.01
        if options["bias_correction"]:
            size *= (1 - 0.999**step) ** 0.5 / (1 - 0.9**step)
        weight = weight - size * ratio * update
        close(got[step - 1], weight)
