"""The models of test_exported.py, and their batches: what programs/exported_training.py trains in PyTorch."""

import math

import torch
import torch.nn.functional as F
import torchvision
from torch import nn


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(20, 64), nn.GELU(), nn.Dropout(0.3), nn.Linear(64, 64), nn.ReLU(inplace=True),
                                    nn.LayerNorm(64), nn.Linear(64, 10))

    def forward(self, x):
        return self.layers(x)


class Lstm(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(12, 24, num_layers=2, batch_first=True, dropout=0.2)
        self.head = nn.Linear(24, 5)

    def forward(self, x):
        states, _ = self.lstm(x)
        return self.head(states[:, -1])


class UNet(nn.Module):
    """Two levels with batch norm, transposed convolutions and skip connections: a class for each pixel."""

    def __init__(self, width=8, classes=3):
        super().__init__()
        self.down1, self.down2 = self.block(3, width), self.block(width, 2 * width)
        self.bottom = self.block(2 * width, 4 * width)
        self.up2, self.merge2 = nn.ConvTranspose2d(4 * width, 2 * width, 2, 2), self.block(4 * width, 2 * width)
        self.up1, self.merge1 = nn.ConvTranspose2d(2 * width, width, 2, 2), self.block(2 * width, width)
        self.head = nn.Conv2d(width, classes, 1)

    @staticmethod
    def block(inputs, outputs):
        return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(True),
                             nn.Conv2d(outputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.LeakyReLU(0.1))

    def forward(self, x):
        one = self.down1(x)
        two = self.down2(F.max_pool2d(one, 2))
        three = self.bottom(F.max_pool2d(two, 2))
        two = self.merge2(torch.cat([self.up2(three), two], dim=1))
        return self.head(self.merge1(torch.cat([self.up1(two), one], dim=1)))


class GptBlock(nn.Module):
    def __init__(self, width, heads, dropout):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.c_fc, self.c_out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.resid = nn.Dropout(dropout)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (part.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
                   for part in self.c_attn(self.ln_1(x)).split(width, dim=2))
        mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout if self.training else 0.0, is_causal=True)
        x = x + self.resid(self.c_proj(mixed.transpose(1, 2).reshape(batch, length, width)))
        hidden = self.c_fc(self.ln_2(x))
        hidden = 0.5 * hidden * (1 + torch.tanh(math.sqrt(2 / math.pi) * (hidden + 0.044715 * torch.pow(hidden, 3.0))))
        return x + self.resid(self.c_out(hidden))


class Gpt2(nn.Module):
    """Hugging Face's GPT2LMHeadModel with its configuration (new GELU, dropout 0.1, tied embeddings), small."""

    def __init__(self, vocabulary=64, length=16, width=32, heads=4, layers=2, dropout=0.1):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.drop = nn.Dropout(dropout)
        self.h = nn.ModuleList(GptBlock(width, heads, dropout) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)
        self.lm_head = nn.Linear(width, vocabulary, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, tokens):
        x = self.drop(self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1], device=tokens.device)))
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x)).transpose(1, 2)


class Pair(nn.Module):
    """Several inputs by keyword and in a tuple, a dict of outputs, a buffer that counts, regions without gradients."""

    def __init__(self):
        super().__init__()
        self.encode, self.head = nn.Linear(6, 16), nn.Linear(16, 4)
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.register_buffer("scale", torch.full((16,), 0.5), persistent=False)
        self.shift = torch.linspace(-1, 1, 16)

    def forward(self, x, extra, *, weight):
        self.calls += 1
        hidden = torch.tanh(self.encode(x)) * self.scale + self.shift
        with torch.no_grad():
            norm = hidden.norm(dim=1, keepdim=True)
        hidden[:, 0] = 0
        logits = self.head(hidden / norm) * weight + extra[0].view(x.shape[0], -1)
        return {"logits": logits, "norms": (norm, norm.sum())}


def swin():
    return torchvision.models.swin_transformer.SwinTransformer(
        patch_size=[2, 2], embed_dim=24, depths=[2, 2], num_heads=[2, 4], window_size=[4, 4], stochastic_depth_prob=0.2,
        num_classes=10)


IMAGES = {"batch": [4, 3, 32, 32], "classes": 10}
# "optimizers": besides SGD and Adam in one pass. "whole": only in script/test --exported.
MODELS = {
    "mlp": (Mlp, {"batch": [16, 20], "classes": 10, "optimizers": ["adamw_fused"]}),
    "lstm": (Lstm, {"batch": [8, 7, 12], "classes": 5, "optimizers": ["adam"]}),
    "resnet18": (lambda: torchvision.models.resnet18(num_classes=10), IMAGES),
    "mobilenet_v3_small": (lambda: torchvision.models.mobilenet_v3_small(num_classes=10), IMAGES),
    "vit": (lambda: torchvision.models.VisionTransformer(32, 8, 2, 4, 64, 128, dropout=0.1, attention_dropout=0.1,
                                                         num_classes=10), IMAGES),
    "swin": (swin, IMAGES),
    "unet": (UNet, {"batch": [2, 3, 16, 16], "classes": 3, "target": [2, 16, 16]}),
    "gpt2": (Gpt2, {"batch": [4, 16], "tokens": 64, "classes": 64, "target": [4, 16], "optimizers": ["adamw_fused"]}),
    "pair": (Pair, {"batch": [8, 6], "classes": 4, "output": "logits"}),
    "vit_b_16": (lambda: torchvision.models.vit_b_16(image_size=32, num_classes=10), {**IMAGES, "whole": True}),
    "swin_t": (lambda: torchvision.models.swin_t(num_classes=10), {**IMAGES, "whole": True}),
}


def make_batch(spec, number):
    """The inputs of the model and the classes of the batch of this number; as in exported_training.cpp."""
    generator = torch.Generator().manual_seed(1000 + number)
    if "tokens" in spec:
        inputs = torch.randint(spec["tokens"], spec["batch"], generator=generator)
    else:
        inputs = torch.randn(spec["batch"], generator=generator)
    classes = torch.randint(spec["classes"], spec.get("target", spec["batch"][:1]), generator=generator)
    return inputs, classes


def call(spec, model, inputs):
    """The scores that the model gives, and all of its outputs."""
    if "output" not in spec:
        return model(inputs)
    extra = (inputs[:, :4].flatten(),)
    return model(inputs, extra, weight=torch.tensor(2.0))[spec["output"]]


def export(spec, model):
    batch = torch.export.Dim("batch", min=1, max=64)
    inputs = make_batch(spec, 0)[0]
    if "output" in spec:
        return torch.export.export(
            model, (inputs, (inputs[:, :4].flatten(),)), {"weight": torch.tensor(2.0)},
            dynamic_shapes={"x": {0: batch}, "extra": ({0: 4 * batch},), "weight": None})
    return torch.export.export(model, (inputs,), dynamic_shapes=({0: batch},))
