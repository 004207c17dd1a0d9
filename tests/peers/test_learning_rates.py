"""Every learning-rate schedule compared with torch.optim.lr_scheduler over 200 steps.

Ours are closed forms. Where PyTorch evaluates a closed form too, the numbers are equal
to the bit. Most of its schedulers multiply the rate of the step before instead and
gather a rounding error in every step: those agree within 1e-12 of the base rate, and
PyTorch's own closed form (_get_closed_form_lr) to the bit where it has one.
"""

import math
import warnings

import pytest
import torch
from torch.optim import lr_scheduler

STEPS = 200
BASE_LRS = [0.1, 0.037]

# name: (Lockstep's, PyTorch's, whether PyTorch steps with its closed form)
CASES = {
    "constant": ({"kind": "constant"}, lambda o: lr_scheduler.LambdaLR(o, lambda step: 1.0), True),
    "step": ({"kind": "step", "every": 7, "gamma": 0.5},
             lambda o: lr_scheduler.StepLR(o, step_size=7, gamma=0.5), False),
    "step-odd": ({"kind": "step", "every": 30, "gamma": 0.7},
                 lambda o: lr_scheduler.StepLR(o, step_size=30, gamma=0.7), False),
    "multi-step": ({"kind": "multi_step", "milestones": [90, 20, 90, 150], "gamma": 0.1},
                   lambda o: lr_scheduler.MultiStepLR(o, milestones=[90, 20, 90, 150], gamma=0.1), False),
    "exponential": ({"kind": "exponential", "gamma": 0.97},
                    lambda o: lr_scheduler.ExponentialLR(o, gamma=0.97), False),
    "polynomial": ({"kind": "polynomial", "total_steps": 150, "power": 2.0},
                   lambda o: lr_scheduler.PolynomialLR(o, total_iters=150, power=2.0), False),
    "polynomial-root": ({"kind": "polynomial", "total_steps": 300, "power": 0.9},
                        lambda o: lr_scheduler.PolynomialLR(o, total_iters=300, power=0.9), False),
    "cyclic": ({"kind": "cyclic", "base_lr": 0.001, "max_lr": 0.1, "step_size": 13},
               lambda o: lr_scheduler.CyclicLR(o, 0.001, 0.1, step_size_up=13, cycle_momentum=False), True),
    "cyclic-own": ({"kind": "cyclic", "max_lr": 0.5, "step_size": 30},
                   lambda o: lr_scheduler.CyclicLR(o, list(BASE_LRS), 0.5, step_size_up=30,
                                                   cycle_momentum=False), True),
    "cosine": ({"kind": "cosine", "t_max": 200, "min_lr": 0.001},
               lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=200, eta_min=0.001), False),
    "cosine-short": ({"kind": "cosine", "t_max": 45},
                     lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=45), False),
    "restarts": ({"kind": "cosine_restarts", "t_0": 40, "min_lr": 1e-4},
                 lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, T_0=40, eta_min=1e-4), True),
    "restarts-growing": ({"kind": "cosine_restarts", "t_0": 10, "t_mult": 2},
                         lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, T_0=10, T_mult=2), True),
    "one-cycle": ({"kind": "one_cycle", "total_steps": 200, "max_lr": 0.4},
                  lambda o: lr_scheduler.OneCycleLR(o, max_lr=0.4, total_steps=200), True),
    "one-cycle-own": ({"kind": "one_cycle", "total_steps": 200},
                      lambda o: lr_scheduler.OneCycleLR(o, max_lr=list(BASE_LRS), total_steps=200), True),
    "one-cycle-linear": ({"kind": "one_cycle", "total_steps": 230, "max_lr": 0.4, "anneal": "linear",
                          "pct_start": 0.45, "div_factor": 10, "final_div_factor": 100},
                         lambda o: lr_scheduler.OneCycleLR(o, max_lr=0.4, total_steps=230, pct_start=0.45,
                                                           anneal_strategy="linear", div_factor=10,
                                                           final_div_factor=100), True),
    "one-cycle-three": ({"kind": "one_cycle", "total_steps": 200, "max_lr": 0.4, "three_phase": True},
                        lambda o: lr_scheduler.OneCycleLR(o, max_lr=0.4, total_steps=200,
                                                          three_phase=True), True),
    "one-cycle-still": ({"kind": "one_cycle", "total_steps": 200, "max_lr": 0.4, "cycle_momentum": False},
                        lambda o: lr_scheduler.OneCycleLR(o, max_lr=0.4, total_steps=200,
                                                          cycle_momentum=False), True),
    "warm-up": ({"kind": "warm_up", "steps": 20, "start_factor": 0.1},
                lambda o: lr_scheduler.LinearLR(o, start_factor=0.1, total_iters=20), False),
    "warm-up-default": ({"kind": "warm_up", "steps": 5},
                        lambda o: lr_scheduler.LinearLR(o), False),
    "warm-up-cosine": ({"kind": "warm_up", "steps": 20, "start_factor": 0.01,
                        "then": {"kind": "cosine", "t_max": 180}},
                       lambda o: lr_scheduler.SequentialLR(
                           o, [lr_scheduler.LinearLR(o, start_factor=0.01, total_iters=20),
                               lr_scheduler.CosineAnnealingLR(o, T_max=180)], [20]), False),
    "warm-up-step": ({"kind": "warm_up", "steps": 11, "start_factor": 0.5,
                      "then": {"kind": "step", "every": 25, "gamma": 0.3}},
                     lambda o: lr_scheduler.SequentialLR(
                         o, [lr_scheduler.LinearLR(o, start_factor=0.5, total_iters=11),
                             lr_scheduler.StepLR(o, 25, 0.3)], [11]), False),
}


def make_optimizer():
    return torch.optim.SGD([{"params": [torch.nn.Parameter(torch.zeros(1))], "lr": lr} for lr in BASE_LRS], lr=1.0)


def trace(make_scheduler):
    """[[rate of each group..., momentum]] and PyTorch's closed form [[rate of each group]] or None."""
    optimizer = make_optimizer()
    scheduler = make_scheduler(optimizer)
    closed = [] if hasattr(scheduler, "_get_closed_form_lr") else None
    rows = []
    for _ in range(STEPS):
        groups = optimizer.param_groups
        rows.append([group["lr"] for group in groups] + [groups[0]["momentum"]])
        if closed is not None:
            closed.append(scheduler._get_closed_form_lr())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the optimizer does not step here
            scheduler.step()
    return rows, closed


@pytest.mark.parametrize("name", CASES)
def test_schedule(optim_trace, name):
    ours, make_scheduler, is_closed = CASES[name]
    got = optim_trace.ask(what="schedule", schedule=ours, steps=STEPS, base_lrs=BASE_LRS)
    expected, closed = trace(make_scheduler)
    assert len(got) == len(expected) == STEPS
    if is_closed:
        assert got == expected
        return
    if closed is not None:
        assert [row[:-1] for row in got] == closed
    for step, (row, peer) in enumerate(zip(got, expected)):
        for a, b, scale in zip(row, peer, [*BASE_LRS, 1.0]):
            assert math.isclose(a, b, rel_tol=0, abs_tol=1e-12 * scale), f"step {step}: {a!r}, PyTorch {b!r}"


def metrics(mode):
    """A metric that falls in steps, with noise and constant parts; inverted for "max". It is above 0, because
    PyTorch's relative threshold is wrong for negative values, and Lockstep's is not."""
    generator = torch.Generator().manual_seed(3)
    noise = torch.rand(STEPS, generator=generator, dtype=torch.float64).tolist()
    values = [2.0 / (1 + step // 30) + 0.05 * noise[step] for step in range(STEPS)]
    values[0:2] = [2.5, 2.4]
    return values if mode == "min" else [3 - value for value in values]


@pytest.mark.parametrize("mode", ["min", "max"])
@pytest.mark.parametrize("threshold_mode", ["rel", "abs"])
@pytest.mark.parametrize("cooldown", [0, 4])
def test_plateau(optim_trace, mode, threshold_mode, cooldown):
    options = {"mode": mode, "threshold_mode": threshold_mode, "patience": 6, "cooldown": cooldown, "min_lr": 1e-3}
    values = metrics(mode)
    got = optim_trace.ask(what="plateau", metrics=values, gamma=0.5, base_lrs=BASE_LRS, **options)
    optimizer = make_optimizer()
    scheduler = lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, **options)
    expected = []
    for value in values:
        scheduler.step(value)
        expected.append([group["lr"] for group in optimizer.param_groups])
    assert got == expected
    assert len({row[0] for row in got}) > 3, "the metrics are meant to make it reduce several times"
