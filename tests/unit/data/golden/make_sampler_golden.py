"""Writes sampler.json: index lists of PyTorch's DistributedSampler.

    python make_sampler_golden.py > sampler.json

Made with torch 2.11.0. Small datasets have the full list of every rank; larger ones
one checksum a rank: the sum of index * (place + 1) modulo 2^64.
"""

import json

import torch
from torch.utils.data.distributed import DistributedSampler

FULL_LIST_LIMIT = 64


def case(n, world_size, shuffle, seed, epoch, drop_last):
    ranks = []
    for rank in range(world_size):
        sampler = DistributedSampler(
            range(n), num_replicas=world_size, rank=rank, shuffle=shuffle, seed=seed, drop_last=drop_last
        )
        sampler.set_epoch(epoch)
        indices = list(sampler)
        assert len(indices) == len(sampler)
        if n > FULL_LIST_LIMIT:
            indices = sum(index * (place + 1) for place, index in enumerate(indices)) % 2**64
        ranks.append(indices)
    return dict(
        n=n, world_size=world_size, shuffle=shuffle, seed=seed, epoch=epoch, drop_last=drop_last, ranks=ranks
    )


def cases():
    for n in (0, 1, 2, 3, 7, 10, 16, 33):
        for world_size in (1, 2, 3, 8):
            for drop_last in (False, True):
                yield case(n, world_size, True, 0, 0, drop_last)
                yield case(n, world_size, False, 0, 0, drop_last)
    # Seeds and epochs: the low half of their sum counts, also for negative seeds.
    for seed in (1, 42, 2**31, 2**32 - 1, 2**32, 2**32 + 7, 2**62, -1, -5, -(2**40)):
        for epoch in (0, 1, 5):
            if seed + epoch >= -(2**63):
                yield case(10, 2, True, seed, epoch, False)
    for n, world_size, seed, epoch in ((100, 3, 0, 1), (1000, 7, 5, 9), (50_000, 4, 0, 3), (100_003, 8, 11, 0)):
        for drop_last in (False, True):
            yield case(n, world_size, True, seed, epoch, drop_last)


if __name__ == "__main__":
    lines = ",\n".join(json.dumps(c, separators=(",", ":")) for c in cases())
    print(f'{{"torch": "{torch.__version__.split("+")[0]}", "cases": [\n{lines}\n]}}')
