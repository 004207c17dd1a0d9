"""The models of include/lockstep/models.h in PyTorch, trained by PyTorch: see model_training.cpp.

    model_training.py CASE.json...

RANK and WORLD_SIZE set the rank of DistributedDataParallel; the ranks connect through STORE_FILE.
"""

import json

import rank_cases
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn
from torch.optim.lr_scheduler import StepLR
from torchvision.models import VisionTransformer


class PrincetonCnn(nn.Module):
    """As in Princeton's script."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3, 1)
        self.conv2 = nn.Conv2d(32, 64, 3, 1)
        self.dropout1 = nn.Dropout(0.25)
        self.dropout2 = nn.Dropout(0.5)
        self.fc1 = nn.Linear(9216, 128)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, x):
        x = F.relu(self.conv2(F.relu(self.conv1(x))))
        x = self.dropout1(F.max_pool2d(x, 2))
        x = F.relu(self.fc1(torch.flatten(x, 1)))
        return F.log_softmax(self.fc2(self.dropout2(x)), dim=1)


class ConvNormRelu(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.cbr = nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding="same", bias=False),
                                 nn.BatchNorm2d(outputs), nn.ReLU())

    def forward(self, x):
        return self.cbr(x)


class ResidualBlock(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        if inputs != outputs:
            self.scale = nn.Conv2d(inputs, outputs, 1, padding="same")
        self.layer1 = ConvNormRelu(inputs, outputs)
        self.dropout = nn.Dropout(0.01)
        self.layer2 = ConvNormRelu(outputs, outputs)

    def forward(self, x):
        out = self.layer2(self.dropout(self.layer1(x)))
        return out + (self.scale(x) if hasattr(self, "scale") else x)


class WideResNet(nn.Module):
    """The layers and names of Sigma2's page."""

    def __init__(self, classes=100, widen_factor=10):
        super().__init__()
        self.input_block = ConvNormRelu(3, 16)
        width = 16
        for i, factor in enumerate((1, 1, 2, 2, 4, 4)):
            setattr(self, f"block{i + 1}", ResidualBlock(width, 16 * widen_factor * factor))
            width = 16 * widen_factor * factor
        self.pool1, self.pool2, self.pool = nn.MaxPool2d(2), nn.MaxPool2d(2), nn.AvgPool2d(7)
        self.flat = nn.Flatten()
        self.fc = nn.Linear(width, classes)

    def forward(self, x):
        x = self.pool1(self.block2(self.block1(self.input_block(x))))
        x = self.pool2(self.block4(self.block3(x)))
        return self.fc(self.flat(self.pool(self.block6(self.block5(x)))))


PRESETS = {"tiny": (3, 192, 768), "small": (6, 384, 1536), "base": (12, 768, 3072)}


def make_vision_transformer(options):
    heads, hidden, mlp = PRESETS[options.get("preset", "base")]
    return VisionTransformer(
        image_size=options.get("image_size", 224), patch_size=options.get("patch_size", 16),
        num_layers=options.get("layers", 12), num_heads=options.get("heads", heads),
        hidden_dim=options.get("hidden_size", hidden), mlp_dim=options.get("mlp_size", mlp),
        num_classes=options.get("classes", 1000), dropout=options.get("dropout", 0.0),
        attention_dropout=options.get("attention_dropout", 0.0))


def make_model(name, options):
    if name == "mlp":
        layers = []
        for inputs, outputs in zip(options["sizes"], options["sizes"][1:]):
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        return nn.Sequential(*layers[:-1])
    if name == "princeton_cnn":
        return PrincetonCnn()
    if name == "wide_resnet":
        return WideResNet(**options)
    return make_vision_transformer(options)


def make_optimizer(name, parameters):
    if name == "adadelta":
        return torch.optim.Adadelta(parameters, lr=1.0)
    if name == "adam":
        return torch.optim.Adam(parameters, lr=1e-3)
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9, weight_decay=5e-4)


def make_batch(spec, number):
    generator = torch.Generator().manual_seed(1000 + number)
    inputs = torch.randn(spec["batch"], generator=generator)
    classes = torch.randint(spec["classes"], (spec["batch"][0],), generator=generator)
    if spec.get("channels_last"):
        inputs = inputs.contiguous(memory_format=torch.channels_last)
    return inputs, classes


def train(spec, model, rank, size):
    """Trains, and returns the loss of each step."""
    parallel = nn.parallel.DistributedDataParallel(model) if size > 1 else model
    optimizer = make_optimizer(spec["optimizer"], model.parameters())
    scheduler = StepLR(optimizer, step_size=1, gamma=0.7)
    loss_of = F.nll_loss if spec["model"] == "princeton_cnn" else F.cross_entropy
    torch.manual_seed(spec["seed"] + 100 + rank)
    losses = []
    for step in range(spec["steps"]):
        inputs, classes = make_batch(spec, step * size + rank)
        optimizer.zero_grad()
        loss = loss_of(parallel(inputs), classes)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if spec["optimizer"] == "adadelta" and step % 10 == 9:
            scheduler.step()
    return losses


def run_case(file, rank, size):
    spec = json.loads(file.read_text())
    torch.manual_seed(spec["seed"])
    model = make_model(spec["model"], spec["options"])
    if "weights" in spec:
        model.load_state_dict(torch.load(spec["weights"]))
    if spec.get("channels_last"):
        model.to(memory_format=torch.channels_last)
    (file.parent / f"losses.{rank}.json").write_text(json.dumps(train(spec, model, rank, size)))
    if rank == 0:
        rank_cases.save_state(model, file.parent)
        model.eval()
        with torch.no_grad():
            save_file({"output": model(make_batch(spec, -1)[0])}, file.parent / "prediction.safetensors")


if __name__ == "__main__":
    rank_cases.main(run_case)
