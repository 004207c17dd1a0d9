"""The recipes of `lockstep train` written in PyTorch: see test_recipe_curves.py.

    recipe_training.py CASE.json...

RANK and WORLD_SIZE set the rank of DistributedDataParallel; the ranks connect through STORE_FILE. An
epoch is one batch, so the losses of epochs are the losses of steps.
"""

import json
import math

import numpy as np
import rank_cases
import torch
import torch.nn.functional as F
import torchvision.transforms.functional as V
from model_training import PrincetonCnn, WideResNet, make_vision_transformer
from PIL import Image
from torch import nn
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import random_split
from torch.utils.data.distributed import DistributedSampler

WORD = 2**64
STEP = 0x9E3779B97F4A7C15


def split_mix(state):
    x = (state + STEP) % WORD
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % WORD
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB % WORD
    return x ^ (x >> 31)


def random_numbers(seed, epoch, index):
    """The random numbers of a sample, as docs/data.md defines them."""
    sample = split_mix(split_mix(split_mix(seed) ^ epoch) ^ index)
    return [split_mix((sample + k * STEP) % WORD) for k in range(3)]


class Images:
    """Bytes [n, height, width, channels] and labels, as a recipe shows them to its model."""

    mean, stddev = (0.1307,), (0.3081,)

    def __init__(self, case):
        self.seed = case["seed"]
        self.pixels, self.labels = np.load(case["images"]), np.load(case["labels"])
        self.indices = range(len(self.labels))

    def prepare(self, image, epoch, index):
        return image

    def example(self, epoch, index):
        place = self.indices[index]
        pixels = self.pixels[place]
        image = self.prepare(Image.fromarray(pixels if pixels.shape[2] == 3 else pixels[:, :, 0]), epoch, index)
        return V.normalize(V.to_tensor(image), self.mean, self.stddev), int(self.labels[place])

    def batch(self, epoch, indices):
        examples = [self.example(epoch, index) for index in indices]
        return torch.stack([image for image, _ in examples]), torch.tensor([label for _, label in examples])


class FashionImages(Images):
    mean, stddev = (0.2860,), (0.3530,)


class CifarImages(Images):
    mean, stddev = (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)

    def prepare(self, image, epoch, index):
        top, left, flip = random_numbers(self.seed, epoch, index)
        places = 32 + 2 * 4 - 32 + 1
        image = V.crop(V.pad(image, 4), top * places >> 64, left * places >> 64, 32, 32)
        return V.hflip(image) if (flip >> 11) * 2.0**-53 < 0.5 else image


class VitImages(Images):
    mean, stddev = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    size = 32

    def __init__(self, case):
        super().__init__(case)
        train = int(len(self.labels) * 0.8)
        parts = random_split(range(len(self.labels)), [train, len(self.labels) - train],
                             generator=torch.Generator().manual_seed(self.seed))
        self.indices = list(parts[0])

    def prepare(self, image, epoch, index):
        side = self.size * 256 // 224
        image = image.resize((side, image.height), Image.Resampling.BILINEAR)
        return V.center_crop(image.resize((side, side), Image.Resampling.BILINEAR), self.size)


class Sine:
    indices = range(100)

    def __init__(self, case):
        self.x = torch.linspace(0, 1, 100).reshape(-1, 1)
        self.y = torch.sin(2 * math.pi * self.x)

    def batch(self, epoch, indices):
        return self.x[indices], self.y[indices]


class Windows:
    """Tokens, and those that follow each of them."""

    def __init__(self, case):
        self.inputs, self.targets = (torch.from_numpy(np.load(case[name])) for name in ("images", "labels"))
        self.indices = range(len(self.inputs))

    def batch(self, epoch, indices):
        return self.inputs[indices], self.targets[indices]


class GptAttention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        query, key, value = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
                             for part in self.c_attn(x).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.c_proj(mixed.transpose(1, 2).flatten(2))


class GptMlp(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.c_fc, self.c_proj = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))


class GptBlock(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.ln_1, self.attn = nn.LayerNorm(width), GptAttention(width, heads)
        self.ln_2, self.mlp = nn.LayerNorm(width), GptMlp(width)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Gpt(nn.Module):
    """GPT-2 with the head tied to the embedding of the tokens."""

    def __init__(self, vocabulary=100, context=32, layers=4, heads=2, width=128):
        super().__init__()
        self.transformer = nn.ModuleDict({
            "wte": nn.Embedding(vocabulary, width), "wpe": nn.Embedding(context, width),
            "h": nn.ModuleList(GptBlock(width, heads) for _ in range(layers)), "ln_f": nn.LayerNorm(width)})
        torch.manual_seed(torch.initial_seed())
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, 0, 0.02 / math.sqrt(2 * layers) if name.endswith("c_proj.weight") else 0.02)
            elif ".ln_" not in name:
                nn.init.zeros_(parameter)

    def forward(self, tokens):
        parts = self.transformer
        x = parts["wte"](tokens) + parts["wpe"].weight[:tokens.shape[1]]
        for block in parts["h"]:
            x = block(x)
        return F.linear(parts["ln_f"](x), parts["wte"].weight)


def token_loss(scores, targets):
    return F.cross_entropy(scores.flatten(0, 1), targets.flatten())


def gpt_optimizer(parameters):
    parameters = list(parameters)
    groups = [{"params": [p for p in parameters if p.dim() > 1], "weight_decay": 0.1},
              {"params": [p for p in parameters if p.dim() == 1], "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=2e-3, betas=(0.9, 0.95), eps=1e-8, fused=True)


def gpt_rate(step, steps, peak=2e-3, least=1e-4, warm_up=3):
    if step < warm_up:
        start = 1 / (warm_up + 1)
        return peak * (start + (1 - start) * step / warm_up)
    return least + (peak - least) * (1 + math.cos(math.pi * (step - warm_up) / (steps - warm_up))) / 2


class Recipe:
    def __init__(self, data, model, loss, optimizer, drop_last=False, rate=None):
        self.data, self.model, self.loss, self.optimizer, self.drop_last = data, model, loss, optimizer, drop_last
        self.rate = rate  # of a step; the batches of all epochs are in one order then


def adadelta(parameters):
    return torch.optim.Adadelta(parameters, lr=1.0)


RECIPES = {
    "sine": Recipe(Sine, lambda: nn.Sequential(nn.Linear(1, 16), nn.ReLU(), nn.Linear(16, 1)), F.mse_loss,
                   lambda parameters: torch.optim.SGD(parameters, lr=0.01)),
    "mnist": Recipe(Images, PrincetonCnn, F.nll_loss, adadelta),
    "fashion-mnist": Recipe(FashionImages, PrincetonCnn, F.nll_loss, adadelta),
    "cifar100": Recipe(CifarImages, WideResNet, F.cross_entropy,
                       lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9, weight_decay=5e-4),
                       drop_last=True),
    "vit": Recipe(VitImages, lambda: make_vision_transformer({"preset": "tiny", "image_size": 32, "classes": 10}),
                  F.cross_entropy, lambda parameters: torch.optim.Adam(parameters, lr=1e-3)),
    "gpt": Recipe(Windows, Gpt, token_loss, gpt_optimizer, drop_last=True, rate=gpt_rate),
}


def run_case(file, rank, size):
    case = json.loads(file.read_text())
    recipe = RECIPES[case["recipe"]]
    data = recipe.data(case)
    torch.manual_seed(case["seed"])
    model = recipe.model()
    parallel = nn.parallel.DistributedDataParallel(model) if size > 1 else model
    optimizer = recipe.optimizer(model.parameters())
    schedule = StepLR(optimizer, step_size=1, gamma=case.get("gamma", 1.0))
    sampler = DistributedSampler(data.indices, size, rank, seed=case["seed"], drop_last=recipe.drop_last)
    torch.manual_seed(case["seed"] + rank)  # each rank has its own dropout masks
    losses = []
    for epoch in range(case["steps"]):
        sampler.set_epoch(0 if recipe.rate else epoch)
        first = epoch * case["batch_size"] if recipe.rate else 0
        inputs, targets = data.batch(epoch, list(sampler)[first:first + case["batch_size"]])
        optimizer.zero_grad()
        loss = recipe.loss(parallel(inputs), targets)
        loss.backward()
        if "clip" in case:
            nn.utils.clip_grad_norm_(model.parameters(), case["clip"])
        if recipe.rate:
            for group in optimizer.param_groups:
                group["lr"] = recipe.rate(epoch, case["steps"])
        optimizer.step()
        if not recipe.rate:
            schedule.step()
        losses.append(loss.item())
    (file.parent / f"losses.{rank}.json").write_text(json.dumps(losses))
    if rank == 0:
        rank_cases.save_state(model, file.parent)


if __name__ == "__main__":
    rank_cases.main(run_case)
