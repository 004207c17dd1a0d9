"""Peer of `lockstep train fashion-mnist --nprocs 2 --epochs 1`: Princeton's script with PyTorch DDP over Gloo.

Two ranks on this machine, torchvision's data set and a loader with two workers each.

usage: fashion_mnist.py FOLDER     where the four files of Fashion-MNIST lie, gzipped
"""

import gzip
import os
import pathlib
import shutil
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
from torchvision import datasets, transforms
from workloads import leave_group


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = torch.nn.Conv2d(1, 32, 3)
        self.conv2 = torch.nn.Conv2d(32, 64, 3)
        self.dropout1, self.dropout2 = torch.nn.Dropout(.25), torch.nn.Dropout(.5)
        self.fc1, self.fc2 = torch.nn.Linear(9216, 128), torch.nn.Linear(128, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv2(F.relu(self.conv1(x)))), 2)
        x = torch.flatten(self.dropout1(x), 1)
        return F.log_softmax(self.fc2(self.dropout2(F.relu(self.fc1(x)))), dim=1)


def run(rank, root, store):
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // 2))
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    torch.manual_seed(1)
    pixels = transforms.Compose([transforms.ToTensor(), transforms.Normalize((.2860,), (.3530,))])
    train, test = (datasets.FashionMNIST(root, train=part, transform=pixels) for part in (True, False))
    sampler = DistributedSampler(train)
    loader = DataLoader(train, batch_size=64, sampler=sampler, num_workers=2)
    model = DistributedDataParallel(Net())
    optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
    sampler.set_epoch(0)
    model.train()
    for step, (data, target) in enumerate(loader):
        optimizer.zero_grad()
        loss = F.nll_loss(model(data), target)
        loss.backward()
        optimizer.step()
        if step % 10 == 0 and rank == 0:
            print(f"Train Epoch: 1 [{step * 128}/{len(train)}]\tLoss: {loss.item():.6f}")
    model.eval()
    correct = torch.zeros(())
    with torch.no_grad():
        for data, target in DataLoader(test, batch_size=1000, sampler=DistributedSampler(test, shuffle=False), num_workers=2):
            correct += (model.module(data).argmax(dim=1) == target).sum()
    dist.all_reduce(correct)
    if rank == 0:
        print(f"Test set: Accuracy: {int(correct)}/{len(test)}")
    leave_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        raw = pathlib.Path(folder) / "FashionMNIST" / "raw"
        raw.mkdir(parents=True)
        for path in pathlib.Path(sys.argv[1]).glob("*-ubyte.gz"):
            with gzip.open(path) as source, open(raw / path.stem, "wb") as target:
                shutil.copyfileobj(source, target)
        torch.multiprocessing.spawn(run, (folder, os.path.join(folder, "store")), nprocs=2)
