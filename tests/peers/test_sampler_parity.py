"""Lockstep's DistributedSampler compared with PyTorch's: the same indices on every rank."""

import os
import random
import subprocess

import pytest
import torch
from torch.utils.data import WeightedRandomSampler
from torch.utils.data.distributed import DistributedSampler

FULL_LIST_LIMIT = 1000
# The first size for which randperm draws 64 bits per step.
WIDE_DRAW_SIZE = (2**32 - 1) // 20


def print_sampler(cases, *arguments):
    program = os.path.join(os.environ["LOCKSTEP_BIN_DIR"], "test", "print_sampler")
    text = "\n".join(" ".join(str(int(value) if isinstance(value, bool) else value) for value in case) for case in cases)
    done = subprocess.run([program, *arguments], input=text, capture_output=True, text=True, check=True, timeout=300)
    return [[int(word) for word in line.split()] for line in done.stdout.split("\n")[:-1]]


def expected_lines(n, world_size, shuffle, seed, epoch, drop_last):
    for rank in range(world_size):
        sampler = DistributedSampler(range(n), world_size, rank, shuffle=shuffle, seed=seed, drop_last=drop_last)
        sampler.set_epoch(epoch)
        indices = list(sampler)
        yield indices if n <= FULL_LIST_LIMIT else digest(torch.tensor(indices))


def digest(indices):
    places = torch.arange(len(indices), dtype=torch.int64).remainder_(1000003)
    return [len(indices), int(indices.sum()), int(places.mul_(indices).sum()) % 2**64]


def random_case(generator):
    return (
        generator.choice([0, 1, 2, 3, generator.randrange(200), generator.randrange(5000)]),
        generator.randrange(1, 12),
        generator.random() < 0.8,
        generator.choice([0, generator.randrange(2**31), generator.randrange(-(2**50), 2**62)]),
        generator.randrange(100),
        generator.random() < 0.5,
    )


@pytest.mark.parametrize("seed", range(4))
def test_random_cases(seed):
    generator = random.Random(seed)
    cases = [random_case(generator) for _ in range(150)]
    lines = iter(print_sampler(cases))
    for case in cases:
        for rank, expected in enumerate(expected_lines(*case)):
            assert next(lines) == expected, (case, rank)
    assert next(lines, None) is None


def test_a_large_dataset():
    case = (1_281_167, 8, True, 0, 3, False)
    assert print_sampler([case]) == list(expected_lines(*case))


# This takes 20 s and 3.5 GB in PyTorch. A size for both sides of the switch would take twice as much, and the
# smaller side is tested above.
def test_the_size_from_which_draws_are_wide():
    generator = torch.Generator()
    generator.manual_seed(3)
    expected = digest(torch.randperm(WIDE_DRAW_SIZE, generator=generator))
    assert print_sampler([(WIDE_DRAW_SIZE, 1, True, 3, 0, False)]) == [expected]


@pytest.mark.parametrize("replacement", [True, False])
def test_weighted_orders(replacement):
    generator = random.Random(7)
    cases = []
    for _ in range(40):
        weights = [generator.choice([0.0, generator.random(), 100 * generator.random()]) for _ in range(60)] + [1.0]
        samples = generator.randrange(1, 200 if replacement else sum(weight > 0 for weight in weights))
        cases.append((samples, generator.randrange(2**31), generator.randrange(50), replacement, *weights))
    for (samples, seed, epoch, _, *weights), order in zip(cases, print_sampler(cases, "weighted"), strict=True):
        theirs = WeightedRandomSampler(weights, samples, replacement, torch.Generator().manual_seed(seed + epoch))
        assert order == list(theirs)
