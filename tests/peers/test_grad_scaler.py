"""GradScaler compared with torch.amp.GradScaler over schedules of overflows."""

import random

import pytest
import torch


def schedule(kind):
    """The gradients of 300 steps, "inf" and "nan" among them."""
    generator = random.Random(kind)
    if kind == "calm":
        return [generator.uniform(-1, 1) for _ in range(300)]
    if kind == "collapse":
        return ["nan"] * 300
    return [generator.choice(["inf", "nan"]) if generator.random() < 0.15 else generator.uniform(-1, 1)
            for _ in range(300)]


def trace(gradients, **options):
    scaler = torch.amp.GradScaler("cpu", **options)
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    rows = []
    for gradient in gradients:
        optimizer.zero_grad()
        scaler.scale((weight * (1.0 if isinstance(gradient, str) else gradient)).sum()).backward()
        if gradient == "inf":
            weight.grad[1] = float("inf")
        if gradient == "nan":
            weight.grad[2] = float("nan")
        before = weight.detach().clone()
        scaler.step(optimizer)
        scaler.update()
        skipped = isinstance(gradient, str)
        assert torch.equal(before, weight.detach()) == (skipped or gradient == 0)
        state = scaler.state_dict()
        rows.append([state["scale"], state["_growth_tracker"], int(skipped), weight[0].item()])
    return rows


@pytest.mark.parametrize("kind", ["calm", "storm", "collapse"])
@pytest.mark.parametrize("options", [
    {"init_scale": 2.0**16, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 2000},
    {"init_scale": 2.0**16, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 5},
    {"init_scale": 1000.0, "growth_factor": 1.7, "backoff_factor": 0.3, "growth_interval": 7},
    # Grows until float32 is full: the scale must stop below infinity.
    {"init_scale": 2.0**120, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 1},
])
def test_trace(optim_trace, kind, options):
    gradients = schedule(kind)
    assert optim_trace.ask(what="scaler", gradients=gradients, **options) == trace(gradients, **options)
