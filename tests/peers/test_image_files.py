"""Image sets compared with other libraries: h5py, NumPy, safetensors, Pillow, torchvision.

build/bin/test/list_images prints what our readers see.
"""

import pickle
import subprocess
import zlib

import h5py
import numpy as np
import pytest
import safetensors.numpy
import torch
from PIL import Image
from torchvision.datasets import CIFAR10, CIFAR100, ImageFolder
from torchvision.datasets.mnist import read_image_file, read_label_file

COUNT, HEIGHT, WIDTH = 23, 11, 7


@pytest.fixture
def list_images(bin_dir):
    def run(path, split="train"):
        done = subprocess.run([bin_dir / "test" / "list_images", path, split], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout
        return done.stdout.splitlines()

    return run


def line(label, pixels):
    """The line that is printed for an image [height, width, channels]."""
    height, width, channels = pixels.shape
    return f"{label} {channels} {height} {width} {zlib.crc32(np.ascontiguousarray(pixels).tobytes()):08x}"


@pytest.fixture
def images():
    return np.random.default_rng(5).integers(0, 256, (COUNT, HEIGHT, WIDTH, 3), np.uint8)


@pytest.fixture
def labels():
    return np.arange(COUNT) % 4


def expected(images, labels):
    return [line(label, image) for label, image in zip(labels, images)]


@pytest.mark.parametrize("kind", [
    {}, {"chunks": True}, {"chunks": (4, HEIGHT, WIDTH, 3)}, {"compression": "gzip"}, {"maxshape": (None, HEIGHT, WIDTH, 3)},
    {"compression": "gzip", "shuffle": True, "fletcher32": True, "chunks": (5, 3, WIDTH, 1)}], ids=str)
@pytest.mark.parametrize("dtype", ["int64", "int32", "uint8"])
def test_h5py(tmp_path, list_images, images, labels, kind, dtype):
    with h5py.File(tmp_path / "set.h5", "w") as file:
        file.create_dataset("images", data=images, **kind)
        file["labels"] = labels.astype(dtype)
        file["class_names"] = ["a", "b", "c", "d"]  # ignored by the reader
        file.attrs["about"] = "a test"
    assert list_images(tmp_path / "set.h5") == expected(images, labels)


def test_h5py_newest_version(tmp_path, list_images, images, labels):
    with h5py.File(tmp_path / "set.h5", "w", libver="latest") as file:
        file["images"], file["labels"] = images, labels
    assert list_images(tmp_path / "set.h5") == expected(images, labels)


def test_h5py_written_piece_by_piece(tmp_path, list_images, images, labels):
    with h5py.File(tmp_path / "set.h5", "w") as file:
        data = file.create_dataset("images", (0, HEIGHT, WIDTH, 3), "u1", maxshape=(None, HEIGHT, WIDTH, 3))
        for i, image in enumerate(images):
            data.resize(i + 1, axis=0)
            data[i] = image
        file["labels"] = labels
    assert list_images(tmp_path / "set.h5") == expected(images, labels)


def test_numpy(tmp_path, list_images, images, labels):
    np.save(tmp_path / "train_images.npy", images)
    np.save(tmp_path / "train_labels.npy", labels)
    assert list_images(tmp_path) == expected(images, labels)


def test_safetensors(tmp_path, list_images, images, labels):
    planar = np.ascontiguousarray(images.transpose(0, 3, 1, 2))
    safetensors.numpy.save_file({"images": planar, "labels": labels}, tmp_path / "train.safetensors")
    assert list_images(tmp_path) == expected(images, labels)


def test_idx(tmp_path, list_images, images, labels):
    def write(name, array):
        header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">i4").tobytes()
        (tmp_path / name).write_bytes(header + array.tobytes())

    write("train-images-idx3-ubyte", images[..., 0])
    write("train-labels-idx1-ubyte", labels.astype(np.uint8))
    theirs = read_image_file(str(tmp_path / "train-images-idx3-ubyte")).unsqueeze(-1).numpy()
    their_labels = read_label_file(str(tmp_path / "train-labels-idx1-ubyte")).tolist()
    assert list_images(tmp_path) == expected(theirs, their_labels)


def smooth(seed, width=61, height=47):
    """A smooth image, because JPEG is not suitable for noise."""
    noise = torch.rand(1, 3, 6, 8, generator=torch.Generator().manual_seed(seed))
    large = torch.nn.functional.interpolate(noise, (height, width), mode="bilinear")
    return Image.fromarray((large[0] * 255).byte().permute(1, 2, 0).numpy())


def test_image_folder(tmp_path, list_images):
    modes = {"RGB": {}, "L": {}, "RGBA": {}, "P": {}, "1": {}, "LA": {}}
    for i, mode in enumerate(modes):
        for name in ("b", "a"):
            folder = tmp_path / "train" / f"class{i % 3}"
            folder.mkdir(parents=True, exist_ok=True)
            smooth(i).convert(mode).save(folder / f"{name}{i}.png")
    for i, options in enumerate([{"quality": 95}, {"quality": 60, "progressive": True}, {"subsampling": 0}, {"quality": 10}]):
        smooth(10 + i).save(tmp_path / "train" / "class1" / f"{i}.JPEG", **options)
    smooth(20).convert("L").save(tmp_path / "train" / "class2" / "grey.jpg")
    smooth(21).convert("CMYK").save(tmp_path / "train" / "class2" / "ink.jpg")
    (tmp_path / "train" / "class0" / "more").mkdir()
    smooth(22).save(tmp_path / "train" / "class0" / "more" / "0.png")

    theirs = ImageFolder(tmp_path / "train")
    assert list_images(tmp_path) == [line(label, np.asarray(image)) for image, label in theirs]


@pytest.mark.parametrize("protocol", [2, 4], ids="protocol{}".format)
@pytest.mark.parametrize("dataset, folder", [(CIFAR10, "cifar-10-batches-py"), (CIFAR100, "cifar-100-python")])
def test_cifar_folder_of_torchvision(tmp_path, list_images, monkeypatch, dataset, folder, protocol):
    """The same pickles through torchvision's class and through our reader."""
    random = np.random.default_rng(3)
    classes = 100 if dataset is CIFAR100 else 10
    (tmp_path / folder).mkdir()

    def write(name, count):
        pixels = random.integers(0, 256, (count, 3072), np.uint8)
        labels = random.integers(0, classes, count).tolist()
        key = "fine_labels" if dataset is CIFAR100 else "labels"
        content = pickle_in_protocol(protocol, pixels, {key: labels, "coarse_labels": [0] * count})
        (tmp_path / folder / name).write_bytes(content)

    for name, _ in dataset.train_list + dataset.test_list:
        write(name, 4)
    names = {dataset.meta["key"]: [f"class {i}" for i in range(classes)]}
    (tmp_path / folder / dataset.meta["filename"]).write_bytes(pickle.dumps(names, protocol))
    # It compares the files with the checksums of the published ones.
    monkeypatch.setattr("torchvision.datasets.cifar.check_integrity", lambda *arguments: True)
    for split in ("train", "test"):
        theirs = dataset(tmp_path, train=split == "train")
        assert list_images(tmp_path / folder, split) == expected(theirs.data, theirs.targets)


def pickle_in_protocol(protocol, pixels, items):
    """In protocol 2 as Python 2 wrote it, with raw text, which Python 3 writes in no protocol."""
    if protocol > 2:
        return pickle.dumps({"data": pixels, **items}, protocol)
    marker = "the bytes of the array"
    text = pickle.dumps({"data": marker, **items}, 2)
    count, width = pixels.shape
    raw = pixels.tobytes()
    array = (b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\0\x85U\x01btR(K\x01J" + count.to_bytes(4, "little") +
             b"J" + width.to_bytes(4, "little") + b"\x86cnumpy\ndtype\nU\x02u1K\0K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ"
             b"\xff\xff\xff\xffK\0tb\x89T" + len(raw).to_bytes(4, "little") + raw + b"tb")
    binunicode = b"X" + len(marker).to_bytes(4, "little") + marker.encode()
    assert text.count(binunicode) == 1
    return text.replace(binunicode, array)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed], ids=lambda save: save.__name__)
def test_npz(tmp_path, list_images, images, labels, save):
    save(tmp_path / "set.npz", images=images, labels=labels)
    assert list_images(tmp_path / "set.npz") == expected(images, labels)
