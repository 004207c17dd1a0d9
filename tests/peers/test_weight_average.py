"""WeightAverage compared with torch.optim.swa_utils.AveragedModel with get_ema_multi_avg_fn."""

import pytest
import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

SIZE = 37  # not a multiple of a vector register
STEPS = 50


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(SIZE))
        self.register_buffer("running", torch.zeros(SIZE))
        self.register_buffer("count", torch.zeros((), dtype=torch.long))

    @torch.no_grad()
    def assign(self, row):
        self.weight.copy_(row[:SIZE])
        self.running.copy_(row[SIZE:-1])
        self.count.fill_(int(row[-1]))


@pytest.mark.parametrize("use_buffers", [False, True])
@pytest.mark.parametrize("decay", [0.999, 0.9, 0.5, 0.0, 1.0])
def test_trace(optim_trace, use_buffers, decay):
    generator = torch.Generator().manual_seed(7)
    rows = torch.randn(STEPS, 2 * SIZE + 1, generator=generator)
    rows[:, -1] = torch.arange(STEPS) * 10
    got = torch.tensor(optim_trace.ask(what="average", rows=rows.tolist(), decay=decay, use_buffers=use_buffers),
                       dtype=torch.float64)
    model = Model()
    averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay), use_buffers=use_buffers)
    for step in range(STEPS):
        model.assign(rows[step])
        averaged.update_parameters(model)
        module = averaged.module
        assert torch.equal(got[step, :SIZE], module.weight.detach().double()), f"step {step}"
        if use_buffers:
            assert torch.equal(got[step, SIZE:-1], module.running.double()), f"step {step}"
            assert got[step, -1] == module.count
        else:  # PyTorch keeps the buffers of the first model, Lockstep those of the last one
            assert torch.equal(got[step, SIZE:-1], rows[step, SIZE:-1].double())
