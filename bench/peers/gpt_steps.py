"""Tokens per second of training the tiny GPT-2 of `lockstep train gpt` in PyTorch, eager, on the CPU.

    python bench/peers/gpt_steps.py
"""

import json
import pathlib
import statistics
import sys
import time

import torch
from torch import nn

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests" / "peers" / "programs"))
from recipe_training import Gpt, gpt_optimizer, token_loss  # noqa: E402

SAMPLES, CONTEXT, VOCABULARY = 16, 128, 256
INTERVAL, INTERVALS = 10, 7


def main():
    torch.manual_seed(0)
    model = Gpt(vocabulary=VOCABULARY, context=CONTEXT)
    optimizer = gpt_optimizer(model.parameters())
    tokens = torch.randint(VOCABULARY, (SAMPLES, CONTEXT + 1))
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    rates = []
    for _ in range(INTERVALS):
        start = time.perf_counter()
        for _ in range(INTERVAL):
            optimizer.zero_grad()
            loss = token_loss(model(inputs), targets)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        loss.item()
        rates.append(INTERVAL * SAMPLES * CONTEXT / (time.perf_counter() - start))
    print(json.dumps({"value": statistics.median(rates[1:]), "unit": "tokens/s"}))


if __name__ == "__main__":
    main()
