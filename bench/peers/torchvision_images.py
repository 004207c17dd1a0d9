"""Images per second of torchvision's usual CIFAR pipeline in one process on one core.

PIL pictures from memory, as torchvision.datasets.CIFAR100 makes them, through
RandomHorizontalFlip, RandomCrop, ToTensor and Normalize, collated into batches.
"""

import json
import time

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import VisionDataset

IMAGES = 10_000
BATCH_SIZE = 256
SECONDS = 3


class InMemory(VisionDataset):
    def __init__(self, transform):
        super().__init__(root="", transform=transform)
        self.data = np.random.default_rng(1).integers(0, 256, (IMAGES, 32, 32, 3), dtype=np.uint8)

    def __len__(self):
        return IMAGES

    def __getitem__(self, index):
        return self.transform(Image.fromarray(self.data[index])), index % 10


def main():
    torch.set_num_threads(1)
    transform = transforms.Compose([
        transforms.RandomHorizontalFlip(), transforms.RandomCrop(32, padding=4), transforms.ToTensor(),
        transforms.Normalize((0.45, 0.45, 0.45), (0.225, 0.225, 0.225))])
    loader = DataLoader(InMemory(transform), batch_size=BATCH_SIZE, shuffle=True)
    images, start = 0, None
    while start is None or time.perf_counter() - start < SECONDS:
        for batch, _ in loader:
            if start is None:  # the first batch is the warm-up
                start = time.perf_counter()
                continue
            images += len(batch)
            if time.perf_counter() - start >= SECONDS:
                break
    print(json.dumps({"value": images / (time.perf_counter() - start), "unit": "images/s"}))


if __name__ == "__main__":
    main()
