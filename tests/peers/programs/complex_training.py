"""The training of complex_training.cpp with PyTorch's DDP: complex_training.py RANK STORE."""

import json
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from rank_cases import leave_group

STEPS, SAMPLES = 10, 16


def random_complex(shape, seed, dtype):
    generator = torch.Generator().manual_seed(seed)
    real = torch.randn(shape, generator=generator, dtype=torch.float64)
    return torch.complex(real, torch.randn(shape, generator=generator, dtype=torch.float64)).to(dtype)


class Net(torch.nn.Module):
    def __init__(self, dtype):
        super().__init__()
        self.mix = torch.nn.Parameter(random_complex((3, 40), 1, dtype) * 0.3)
        self.shift = torch.nn.Parameter(random_complex((40,), 2, dtype) * 0.3)
        self.read = torch.nn.Parameter(random_complex((40, 2), 3, dtype).real.contiguous() * 0.3)

    def forward(self, x):
        return torch.matmul((torch.matmul(x, self.mix) + self.shift).abs(), self.read)


OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9, weight_decay=0.01),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01, weight_decay=0.01),
    "adadelta": lambda parameters: torch.optim.Adadelta(parameters, lr=0.7, weight_decay=0.01),
}


def train(dtype, name, rank):
    net = DistributedDataParallel(Net(dtype))
    optimizer = OPTIMIZERS[name](net.parameters())
    losses, norms = [], []
    for step in range(STEPS):
        seed = 100 + 2 * step + rank
        x = random_complex((SAMPLES, 3), seed, dtype)
        y = random_complex((SAMPLES, 2), seed + 1000, dtype).real.contiguous()
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(net(x), y)
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(net.parameters(), 1e9).item())
        optimizer.step()
        losses.append(loss.item())
    pairs = [torch.view_as_real(p) if p.is_complex() else p for p in net.parameters()]
    weights = [number for p in pairs for number in p.detach().double().flatten().tolist()]
    return {"losses": losses, "norms": norms, "weights": weights}


def main(rank, store):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    for dtype in (torch.complex64, torch.complex128):
        for name in OPTIMIZERS:
            result = train(dtype, name, rank)
            if rank == 0:
                print(json.dumps(result))
    leave_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
