"""Images per second of training steps of Sigma2's Wide ResNet or torchvision's vit_b_16 in PyTorch, channels last, or
tokens per second of GPT-2 124M with samples of 1024 tokens.

    python bench/peers/gpu_steps.py BATCH_SIZE fp32|bf16|fp16 [eager|compile] [wide_resnet|vit_b_16|gpt_124M]

compile: torch.compile in the mode max-autotune, which also records CUDA graphs, and the fused optimizer.
"""

import json
import pathlib
import sys
import time

import torch
from torch import nn

WARM_UP, STEPS = 20, 100


class ConvNormRelu(nn.Sequential):
    def __init__(self, inputs, outputs):
        super().__init__(nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU())


class Block(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.scale = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()
        self.body = nn.Sequential(ConvNormRelu(inputs, outputs), nn.Dropout(.01), ConvNormRelu(outputs, outputs))

    def forward(self, x):
        return self.body(x) + self.scale(x)


def wide_resnet():
    widths = [160, 160, 320, 320, 640, 640]
    blocks = [Block(a, b) for a, b in zip([16, *widths], widths)]
    return nn.Sequential(
        ConvNormRelu(3, 16), *blocks[:2], nn.MaxPool2d(2), *blocks[2:4], nn.MaxPool2d(2), *blocks[4:],
        nn.AvgPool2d(7), nn.Flatten(), nn.Linear(640, 100))


def main():
    batch, precision = int(sys.argv[1]), sys.argv[2]
    compiled = sys.argv[3:4] == ["compile"]
    name = sys.argv[4] if len(sys.argv) > 4 else "wide_resnet"
    dtype = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(0)
    if name == "gpt_124M":
        sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests" / "peers" / "programs"))
        from recipe_training import Gpt
        model = Gpt(vocabulary=50304, context=1024, layers=12, heads=12, width=768).cuda()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    elif name == "vit_b_16":
        import torchvision
        model = torchvision.models.vit_b_16().cuda()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    else:
        model = wide_resnet().cuda().to(memory_format=torch.channels_last)
        assert sum(p.numel() for p in model.parameters()) == 17_175_444
        optimizer = torch.optim.SGD(model.parameters(), lr=.01, momentum=.9, weight_decay=5e-4,
                                    fused=True if compiled else None)
    scaler = torch.amp.GradScaler(enabled=precision == "fp16")
    units, unit = batch, "img/s"
    if name == "gpt_124M":
        tokens = torch.randint(50304, (batch, 1025), device="cuda")
        inputs, labels = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
        units, unit = batch * 1024, "tokens/s"
    else:
        side = 224 if name == "vit_b_16" else 32
        inputs = torch.randn(batch, 3, side, side, device="cuda").contiguous(memory_format=torch.channels_last)
        labels = torch.randint(100, (batch,), device="cuda")

    def loss_of(inputs, labels):
        with torch.autocast("cuda", dtype=dtype, enabled=dtype is not None):
            scores = model(inputs)
            return nn.functional.cross_entropy(scores.flatten(0, -2), labels.flatten())

    if compiled:
        loss_of = torch.compile(loss_of, mode="max-autotune")
    for step in range(WARM_UP + STEPS):
        if step == WARM_UP:
            torch.cuda.synchronize()
            start = time.perf_counter()
        optimizer.zero_grad()
        scaler.scale(loss_of(inputs, labels)).backward()
        scaler.step(optimizer)
        scaler.update()
    torch.cuda.synchronize()
    print(json.dumps({"value": STEPS * units / (time.perf_counter() - start), "unit": unit,
                      "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 2)}))


main()
