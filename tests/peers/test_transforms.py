"""ImageTransform compared with torchvision on PIL images: the same bits.

What is random there is given to both sides; what is drawn from a seed is tested elsewhere.
"""

import itertools
import json
import random
import subprocess

import numpy as np
import pytest
import torch
import torchvision.transforms
import torchvision.transforms.functional as F
from PIL import Image
from torchvision.transforms import v2

MEAN = [0.5071, 0.4865, 0.4409]
STDDEV = [0.2673, 0.2564, 0.2762]


def picture(height, width, channels, seed):
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, channels), dtype=np.uint8)
    return Image.fromarray(pixels if channels == 3 else pixels[:, :, 0])


def resize(image, size):
    """torchvision's Resize with the horizontal pass first; in a single call, new versions of Pillow
    sometimes run the vertical pass first."""
    height, width = F._compute_resized_output_size((image.height, image.width), [size])
    narrowed = image.resize((width, image.height), Image.Resampling.BILINEAR)
    return narrowed.resize((width, height), Image.Resampling.BILINEAR)


def change_colors(image, case):
    """torchvision's ColorJitter with factors that are given."""
    names = ("brightness", "contrast", "saturation", "hue")
    factors = {f"{name}_factor": factor if limit > 0 else None
               for name, factor, limit in zip(names, case["factors"], case["color_jitter"])}
    return v2.ColorJitter().transform(image, {"fn_idx": torch.tensor(case["order"]), **factors})


def expected(image, case):
    if "resize" in case:
        image = resize(image, case["resize"])
    if "center_crop" in case:
        image = F.center_crop(image, case["center_crop"])
    if "random_crop" in case:
        side = case["random_crop"]
        image = F.crop(F.pad(image, case.get("padding", 0)), case["top"], case["left"], side, side)
    if "random_resized_crop" in case:
        side = case["random_resized_crop"]
        part = F.crop(image, case["top"], case["left"], case["part_height"], case["part_width"])
        # The horizontal pass first, as in resize().
        image = part.resize((side, part.height), Image.Resampling.BILINEAR).resize((side, side), Image.Resampling.BILINEAR)
    if case.get("flip"):
        image = F.hflip(image)
    if "color_jitter" in case:
        image = change_colors(image, case)
    tensor = F.to_tensor(image)
    return F.normalize(tensor, case["mean"], case["stddev"]) if "mean" in case else tensor


def ours(bin_dir, folder, images, cases):
    lines = []
    for i, (image, case) in enumerate(zip(images, cases)):
        pixels = np.asarray(image).reshape(image.height, image.width, -1)
        stored = pixels.transpose(2, 0, 1) if case.get("planar") else pixels
        (folder / f"{i}.in").write_bytes(np.ascontiguousarray(stored).tobytes())
        lines.append(json.dumps({**case, "image": str(folder / f"{i}.in"), "out": str(folder / f"{i}.out"),
                                 "channels": pixels.shape[2], "height": image.height, "width": image.width}))
    subprocess.run([bin_dir / "test" / "transform_images"], input="\n".join(lines), text=True, check=True, timeout=300)
    return [np.fromfile(folder / f"{i}.out", dtype=np.float32) for i in range(len(cases))]


def compare(bin_dir, folder, images, cases):
    for image, case, result in zip(images, cases, ours(bin_dir, folder, images, cases)):
        tensor = expected(image, case)
        if case.get("channels_last"):
            tensor = tensor.permute(1, 2, 0)
        wanted = tensor.contiguous().numpy().reshape(-1)
        assert np.array_equal(result.view(np.uint32), wanted.view(np.uint32)), (image.size, case)


CASES = {
    "as it is": {},
    "normalise": {"mean": MEAN, "stddev": STDDEV},
    "flip": {"flip": True},
    "crop": {"random_crop": 32, "padding": 4, "top": 1, "left": 7},
    "crop without padding": {"random_crop": 20, "top": 12, "left": 3},
    "centre": {"center_crop": 25},
    "centre of a smaller picture": {"center_crop": 41},
    "part, smaller": {"random_resized_crop": 9, "top": 3, "left": 5, "part_height": 27, "part_width": 22},
    "part, larger": {"random_resized_crop": 48, "top": 0, "left": 11, "part_height": 32, "part_width": 24, "flip": True,
                     "mean": MEAN, "stddev": STDDEV},
    "colours": {"color_jitter": [0.4, 0.4, 0.4, 0.1], "order": [2, 0, 3, 1], "factors": [1.3, 0.7, 1.35, -0.08]},
    "colours of a crop": {"random_crop": 32, "padding": 4, "top": 0, "left": 2, "flip": True, "mean": MEAN,
                          "stddev": STDDEV, "color_jitter": [0.4, 0.4, 0, 0], "order": [1, 3, 2, 0],
                          "factors": [0.62, 1.4, 1, 0]},
    "larger": {"resize": 100},
    "smaller": {"resize": 13},
    "all": {"resize": 40, "center_crop": 36, "random_crop": 32, "padding": 4, "top": 8, "left": 5, "flip": True,
            "mean": MEAN, "stddev": STDDEV},
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("planar", [False, True])
@pytest.mark.parametrize("channels_last", [False, True])
def test_step(bin_dir, tmp_path, name, planar, channels_last):
    case = {**CASES[name], "planar": planar, "channels_last": channels_last}
    compare(bin_dir, tmp_path, [picture(32, 35, 3, 1)], [case])
    if "mean" not in case:
        compare(bin_dir, tmp_path, [picture(32, 35, 1, 2)], [case])


@pytest.mark.parametrize("seed", range(4))
def test_random_cases(bin_dir, tmp_path, seed):
    generator = random.Random(seed)
    images, cases = [], []
    for _ in range(60):
        height, width = generator.randint(1, 150), generator.randint(1, 150)
        case = {"planar": generator.random() < 0.5, "channels_last": generator.random() < 0.5,
                "flip": generator.random() < 0.5}
        if generator.random() < 0.6:
            case["resize"] = generator.randint(1, 120)
            if case["resize"] * max(height, width) / min(height, width) > 2000:
                continue
        if generator.random() < 0.5:
            case["center_crop"] = generator.randint(1, 140)
        if generator.random() < 0.5:
            case["mean"] = [generator.random() for _ in range(3)]
            case["stddev"] = [generator.uniform(0.01, 2) for _ in range(3)]
        images.append(picture(height, width, 3, generator.randrange(2**30)))
        cases.append(case)
    compare(bin_dir, tmp_path, images, cases)


def test_the_evaluation_of_vit_on_a_photograph_s_size(bin_dir, tmp_path):
    case = {"resize": 256, "center_crop": 224, "mean": [0.485, 0.456, 0.406], "stddev": [0.229, 0.224, 0.225]}
    images = [picture(375, 500, 3, 1), picture(500, 375, 3, 2), picture(64, 64, 3, 3)]
    compare(bin_dir, tmp_path, images, [case] * 3)


def test_resize_in_one_call_is_at_most_one_off(bin_dir, tmp_path):
    images = [picture(100, 37, 3, 1), picture(37, 100, 3, 2), picture(375, 500, 3, 3)]
    results = ours(bin_dir, tmp_path, images, [{"resize": 30, "channels_last": True}] * 3)
    for image, result in zip(images, results):
        whole = np.asarray(F.resize(image, 30)).reshape(-1).astype(int)
        assert np.abs(np.rint(result * 255).astype(int) - whole).max() <= 1


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2]])
def test_every_change_of_colours(bin_dir, tmp_path, order):
    """All bytes with many factors, and those at which the arithmetic changes: 0, 1, and 0.5 of the circle."""
    generator = random.Random(str(order))
    images, cases = [], []
    for factor in (0.0, 0.25, 1.0, 1.75, 3.0):
        for hue in (-0.5, -0.04, 0.0, 0.31, 0.5):
            images.append(picture(64, 64, 3, generator.randrange(2**30)))
            factors = [generator.choice([factor, generator.uniform(0, 2)]) for _ in range(3)]
            cases.append({"color_jitter": [2, 2, 2, 0.5], "order": order, "factors": [*factors, hue]})
    compare(bin_dir, tmp_path, images, cases)


def test_the_hue_of_every_colour(bin_dir, tmp_path):
    """A picture of 2^18 colours through the other colour space and back."""
    values = np.arange(0, 256, 4, dtype=np.uint8) + np.arange(64, dtype=np.uint8) % 4
    colours = np.stack(np.meshgrid(values, values, values), axis=-1).reshape(512, 512, 3)
    images = [Image.fromarray(np.ascontiguousarray(colours))] * 2
    cases = [{"color_jitter": [0, 0, 0, 0.5], "order": [0, 1, 2, 3], "factors": [1, 1, 1, hue]} for hue in (0.0, 0.2)]
    compare(bin_dir, tmp_path, images, cases)


STEP, MASK = 0x9E3779B97F4A7C15, 2**64 - 1


def split_mix(seed, k):
    """Output k of SplitMix64, whose numbers our draws are."""
    z = (seed + (k + 1) * STEP) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


@pytest.mark.parametrize("area, ratio", [((0.08, 1.0), (3 / 4, 4 / 3)), ((0.5, 1.0), (0.2, 5.0)), ((1.0, 1.0), (3.0, 3.0))])
def test_random_resized_crop_draws_as_torchvision(bin_dir, monkeypatch, area, ratio):
    """RandomResizedCrop.get_params with our random numbers instead of torch's."""
    sizes = [(224, 300), (32, 32), (7, 500), (500, 7), (1, 1), (480, 640)]
    cases = [(height, width, seed * 7919) for height, width in sizes for seed in range(200)]
    lines = "\n".join(json.dumps({"height": height, "width": width, "seed": seed, "crop_area": area, "crop_ratio": ratio})
                      for height, width, seed in cases)
    done = subprocess.run([bin_dir / "test" / "transform_images"], input=lines, text=True, check=True, capture_output=True)
    class Numbers:
        """What get_params draws: two uniform numbers a try, then two integers."""

        def __init__(self, seed):
            self.seed, self.uniforms, self.integers = seed, 3, 0

        def empty(self, size):
            return self

        def uniform_(self, low, high):
            fraction = torch.tensor((split_mix(self.seed, self.uniforms) >> 40) * 2.0**-24, dtype=torch.float32)
            self.uniforms += 1
            low, high = torch.as_tensor(low, dtype=torch.float32), torch.as_tensor(high, dtype=torch.float32)
            return (fraction * (high - low) + low).reshape(1)

        def randint(self, low, high, size):
            number = split_mix(self.seed, self.integers)
            self.integers += 1
            return torch.tensor([low + (number * (high - low) >> 64)])

        def __getattr__(self, name):
            return getattr(torch, name)

    for (height, width, seed), line in zip(cases, done.stdout.splitlines(), strict=True):
        with monkeypatch.context() as patched:
            patched.setattr("torchvision.transforms.transforms.torch", Numbers(seed))
            top, left, part_height, part_width = torchvision.transforms.RandomResizedCrop.get_params(
                torch.empty(3, height, width), area, ratio)
        assert line == f"{top} {left} {part_height} {part_width}", (height, width, seed)


@pytest.mark.parametrize("limits", [(0.4, 0.4, 0.4, 0.1), (0, 2, 0.3, 0), (0.8, 0, 0, 0.5)])
def test_colour_jitter_draws_as_torchvision(bin_dir, monkeypatch, limits):
    """ColorJitter.make_params with our random numbers instead of torch's."""
    seeds = [7919 * seed for seed in range(100)]
    lines = "\n".join(json.dumps({"seed": seed, "color_jitter": limits}) for seed in seeds)
    done = subprocess.run([bin_dir / "test" / "transform_images"], input=lines, text=True, check=True, capture_output=True)
    orders = list(itertools.permutations(range(4)))
    names = ("brightness", "contrast", "saturation", "hue")
    for seed, line in zip(seeds, done.stdout.splitlines(), strict=True):
        order, *factors = json.loads(line)
        assert tuple(order) == orders[split_mix(seed, 32) * 24 >> 64]
        jitter = v2.ColorJitter(*limits)
        numbers = iter([33 + i for i, name in enumerate(names) if getattr(jitter, name) is not None])

        def uniform(low, high):
            fraction = torch.tensor((split_mix(seed, next(numbers)) >> 40) * 2.0**-24, dtype=torch.float32)
            low, high = torch.tensor(low, dtype=torch.float32), torch.tensor(high, dtype=torch.float32)
            return float(fraction * (high - low) + low)

        with monkeypatch.context() as patched:
            patched.setattr(v2.ColorJitter, "_generate_value", staticmethod(uniform))
            params = jitter.make_params([])
        for name, ours, unset in zip(names, factors, (1, 1, 1, 0)):
            theirs = params[f"{name}_factor"]
            assert ours == (unset if theirs is None else theirs), (seed, name)


@pytest.mark.parametrize("alpha", [0.2, 1.0, 3.0])
def test_mix_up_is_that_of_torchvision_after_its_seed(bin_dir, alpha):
    generator = np.random.default_rng(1)
    images = generator.random((5, 3, 2, 2), dtype=np.float32)
    labels, classes, seeds = [3, 0, 1, 1, 2], 6, [0, 1, 7919, 2**31 + 5]
    lines = "\n".join(json.dumps({"alpha": alpha, "seed": seed, "images": images.reshape(-1).tolist(), "labels": labels,
                                  "num_classes": classes}) for seed in seeds)
    done = subprocess.run([bin_dir / "test" / "mix_up_batches"], input=lines, text=True, check=True, capture_output=True)
    for seed, line in zip(seeds, done.stdout.splitlines(), strict=True):
        torch.manual_seed(seed)
        wanted = v2.MixUp(alpha=alpha, num_classes=classes)(torch.from_numpy(images), torch.tensor(labels))
        for ours, theirs in zip(json.loads(line), wanted, strict=True):
            assert np.array_equal(np.array(ours, dtype=np.float32), theirs.numpy().reshape(-1)), seed
