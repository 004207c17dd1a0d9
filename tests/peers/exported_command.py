"""`lockstep train model.pt2` and the same training in eager PyTorch, for test_exported*.py."""

import itertools
import os
import pathlib
import subprocess

import numpy
import torch
from torch import nn

BIN = pathlib.Path(os.environ["LOCKSTEP_BIN_DIR"])
ENVIRONMENT = dict(os.environ, OMP_NUM_THREADS="1", LOCKSTEP_COMPUTE_SETUP="cpu")
BATCH = torch.export.Dim("batch", min=1, max=64)
RUNS = itertools.count()
SAMPLES, BATCH_SIZE, EPOCHS, LR, SEED = 64, 16, 2, 0.01, 9


def run_command(*words, status=0):
    """The text that `lockstep WORDS` prints."""
    done = subprocess.run([BIN / "lockstep", *words], capture_output=True, text=True, timeout=300, check=False, env=ENVIRONMENT)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


def train(file, folder, *flags, status=0):
    """The text that a training prints; without --run-dir it has a folder of its own, from which no other one resumes."""
    return run_command("train", file, "--epochs", str(EPOCHS), "--batch-size", str(BATCH_SIZE), "--lr", str(LR), "--seed", str(SEED),
                       "--optimizer", "sgd", "--tracking_tool", "none", "--run-dir", folder / f"run-{next(RUNS)}", *flags, status=status)


def trained(file, folder, *flags):
    """The state dict that a training writes."""
    train(file, folder, "--save-state-dict", folder / "state.pt", *flags)
    return torch.load(folder / "state.pt", weights_only=True)


def export(model, file, *inputs, variable=None):
    """Writes the model for batches of any size. `variable`: the inputs whose first dimension is the batch; all if left out."""
    sizes = tuple({0: BATCH} if variable is None or i in variable else None for i in range(len(inputs)))
    torch.export.save(torch.export.export(model, inputs, dynamic_shapes=sizes), file)
    return file


def save(folder, **tensors):
    """Writes NAME.npy for each tensor."""
    for name, tensor in tensors.items():
        numpy.save(folder / f"{name}.npy", tensor.numpy())


def epochs(*tensors):
    """The batches of each epoch of such a training."""
    data = torch.utils.data.TensorDataset(*tensors)
    sampler = torch.utils.data.DistributedSampler(data, num_replicas=1, rank=0, seed=SEED)
    torch.manual_seed(SEED)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        indices = list(sampler)
        yield [tuple(tensor[indices[first:first + BATCH_SIZE]] for tensor in tensors)
               for first in range(0, len(indices), BATCH_SIZE)]


def train_eagerly(model, *tensors, loss, optimizer=None, schedule=None, autocast=None):
    """Trains the model with SGD, or with the optimizer of the parameters that `optimizer` makes."""
    torch.set_num_threads(1)
    optimizer = (optimizer or (lambda parameters: torch.optim.SGD(parameters, lr=LR)))(model.parameters())
    schedule = schedule(optimizer) if schedule else None
    scaler = torch.amp.GradScaler("cpu", enabled=autocast == torch.float16)
    for batches in epochs(*tensors):
        for batch in batches:
            optimizer.zero_grad()
            with torch.autocast("cpu", autocast or torch.bfloat16, enabled=autocast is not None):
                value = loss(model, *batch)
            scaler.scale(value).backward()
            scaler.step(optimizer)
            scaler.update()
        if schedule:
            schedule.step()
    return dict(model.state_dict())


def different(one, other):
    """The names of what is not equal in two state dicts."""
    return sorted(set(one) ^ set(other)) + [name for name in one if name in other and not torch.equal(one[name], other[name])]


def normal(*shape, seed=5):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def small_model(outputs=3):
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, outputs))
