"""Writes resize.txt: digests of images that Pillow 13.0.0 resized.

A line is: height width channels resize, FNV-1a of the bytes [height, width, channels].
Each direction is a call of its own: in one call new versions of Pillow sometimes take the
vertical pass first.
"""

import pathlib

import numpy as np
from PIL import Image

CASES = [(5, 7, 3, 3), (7, 5, 1, 12), (32, 32, 3, 48), (9, 4, 3, 4), (100, 37, 3, 10), (1, 1, 3, 4), (61, 45, 1, 28),
         (300, 401, 3, 224), (64, 64, 3, 64), (64, 63, 1, 64), (3, 90, 3, 2), (500, 375, 1, 256)]


def picture(height, width, channels):
    y, x, c = np.meshgrid(np.arange(height), np.arange(width), np.arange(channels), indexing="ij")
    return ((y * y * 31 + x * x * 17 + x * y * 7 + c * 85) % 251).astype(np.uint8)


def digest(data):
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return value


def main():
    lines = []
    for height, width, channels, size in CASES:
        pixels = picture(height, width, channels)
        image = Image.fromarray(pixels if channels == 3 else pixels[:, :, 0])
        shorter, longer = sorted((height, width))
        other = int(size * longer / shorter)
        new_height, new_width = (other, size) if width <= height else (size, other)
        narrowed = image.resize((new_width, height), Image.Resampling.BILINEAR)
        resized = np.asarray(narrowed.resize((new_width, new_height), Image.Resampling.BILINEAR))
        lines.append(f"{height} {width} {channels} {size} {digest(resized.tobytes())}\n")
    pathlib.Path(__file__).with_name("resize.txt").write_text("".join(lines))


if __name__ == "__main__":
    main()
