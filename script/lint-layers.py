#!/usr/bin/env python3
"""Checks that folders are layers: script/lint-layers.py [ROOT].

Includes go downward only, the folders inside a layer do not include each other in a cycle, the layers without LibTorch do
not include it, public headers include nothing of src, and recipes and examples include public headers only.
"""

import pathlib
import re
import sys

CORE = ("base", "config", "cluster", "launcher", "track", "images", "report")

# Folder of src -> folders that it may include. An edge that is not here is an error.
LAYERS = {
    "base": (),
    "config": ("base",),
    "cluster": ("base", "config"),
    "launcher": ("base", "config", "cluster"),
    # Writes the metrics of a run to files or to a server.
    "track": ("base", "config"),
    # Image sets as bytes: readers, decoding, and the conversion into a batch.
    "images": ("base", "config"),
    # Reports of the runs in run folders.
    "report": ("base", "config", "track"),
    # The differences between versions of LibTorch, and the headers that its wheel lacks.
    "torch_private": (),
    "comm": (*CORE, "torch_private"),
    # Layers with fused kernels, which the plugin cuda has.
    "nn": (*CORE, "comm"),
    # data and checkpoint know rank and world size as numbers and do not communicate.
    "data": ("base", "config", "images"),
    "checkpoint": ("base", "config"),
    "optim": (*CORE, "comm", "checkpoint"),
    # Gradient reduction and ZeRO: a model replicated on the ranks or sharded over them.
    "parallel": (*CORE, "torch_private", "comm", "nn", "optim", "checkpoint"),
    # Models that Python exported: their files, and how their operators run. Their modules are units of ZeRO.
    "exported": ("base", "config", "nn", "checkpoint", "parallel"),
    "train": (*CORE, "torch_private", "comm", "nn", "parallel", "optim", "data", "checkpoint", "exported"),
    # What `lockstep train NAME` runs, and its models. Of these layers a recipe includes only the public
    # headers: check_program().
    "recipes": (*CORE, "comm", "nn", "parallel", "optim", "data", "checkpoint", "exported", "train"),
    "cli": (*CORE, "comm", "parallel", "optim", "data", "checkpoint", "exported", "train", "recipes"),
    # A plugin: it is loaded at run time, and nothing includes it.
    "cuda": (*CORE, "torch_private", "comm", "nn", "parallel"),
}

# The layer of each public header: include/lockstep/NAME.h.
PUBLIC = {
    "error": "base", "json": "base", "version": "base", "deepspeed_config": "config", "rank_map": "cluster",
    "track": "track", "image_files": "images",
    "communicator": "comm", "c10d": "comm", "data": "data", "images": "data", "weights": "checkpoint",
    "script_model": "checkpoint", "exported_model": "exported", "nn": "nn", "optim": "optim", "schedule": "optim", "search": "optim", "zero": "config",
    "data_parallel": "parallel", "sharded": "parallel",
    "config": "train", "callbacks": "train", "model": "train", "launch": "train", "mpi": "train", "trainer": "train", "physics": "train", "landscape": "train", "deepspeed": "train",
    "models": "recipes", "lockstep": "recipes",
}

TORCH = re.compile(r"(torch|ATen|c10|caffe2)/")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^">]+)[">]', re.MULTILINE)


def target_folder(root, path, quote, name):
    """The folder of src that a private include leads to, as its parts below src; None: none of src."""
    if quote == '"':
        local = (path.parent / name).resolve()
        if local.is_file() and (root / "src") in local.parents:
            return local.relative_to(root / "src").parts[:-1]
        if name.split("/")[0] in LAYERS:
            return tuple(name.split("/")[:-1])
    return None


def target_layer(root, path, quote, name):
    """The layer that an include leads to; None for the standard library and third parties."""
    if name.startswith("lockstep/"):
        return PUBLIC.get(name.removeprefix("lockstep/").removesuffix(".h"))
    folder = target_folder(root, path, quote, name)
    return folder[0] if folder else None


def check_file(root, path, layer, is_public=False):
    for quote, name in INCLUDE.findall(path.read_text()):
        target = target_layer(root, path, quote, name)
        if layer in CORE and TORCH.match(name):
            yield f"includes LibTorch, which layer {layer} does without: {name}"
        if is_public and name == "torch/torch.h":
            yield "is public and includes torch/torch.h: forward-declare what it names"
        if is_public and not name.startswith("lockstep/") and target is not None:
            yield f"is public and includes a private header: {name}"
        elif target is not None and target != layer and target not in LAYERS[layer]:
            yield f"is in layer {layer} and includes upward into {target}: {name}"


def check_program(root, path, kind, own_layer=None):
    """Users write such a source in their own project: it includes no header of src outside its own folder."""
    for quote, name in INCLUDE.findall(path.read_text()):
        layer = target_layer(root, path, quote, name)
        if name.startswith("lockstep/") or layer is not None and layer == own_layer:
            continue
        is_missing = quote == '"' and not (path.parent / name).is_file()
        if layer is not None or is_missing or (root / "src" / name).is_file():
            yield f"is {kind} and includes a private header: {name}"


def sources(root):
    return [path for path in sorted((root / "src").glob("*/**/*")) if path.suffix in (".h", ".cpp", ".cu", ".cuh")]


def cycles(root):
    """A line for each include between two folders of which the second leads back to the first."""
    includes = {}  # folder -> folder that it includes -> (file, name)
    for path in sources(root):
        folder = path.relative_to(root / "src").parts[:-1]
        for quote, name in INCLUDE.findall(path.read_text()):
            target = target_folder(root, path, quote, name)
            if target is not None and target != folder:
                includes.setdefault(folder, {}).setdefault(target, (path, name))

    def reachable(folder):
        found, ahead = set(), [folder]
        while ahead:
            new = set(includes.get(ahead.pop(), {})) - found
            found |= new
            ahead += new
        return found

    for folder, targets in includes.items():
        for target, (path, name) in targets.items():
            # check_file reports what leads upward between layers.
            if folder[0] == target[0] and folder in reachable(target):
                yield (f"{path.relative_to(root)}: includes {name}, and src/{'/'.join(target)} includes "
                       f"src/{'/'.join(folder)} too: move what both need down")


def problems(root):
    """'file: sentence' for each broken rule."""
    yield from cycles(root)
    for path in sources(root):
        layer = path.relative_to(root / "src").parts[0]
        if layer not in LAYERS:
            yield f"{path.relative_to(root)}: the folder is no layer of script/lint-layers.py: {layer}"
            continue
        yield from (f"{path.relative_to(root)}: {text}" for text in check_file(root, path, layer))
        if layer == "recipes":
            yield from (f"{path.relative_to(root)}: {text}"
                        for text in check_program(root, path, "a recipe", own_layer="recipes"))
    for path in sorted((root / "include" / "lockstep").glob("**/*.h")):
        layer = PUBLIC.get(path.stem)
        if layer is None:
            yield f"{path.relative_to(root)}: the header has no layer: add it to PUBLIC in script/lint-layers.py"
            continue
        yield from (f"{path.relative_to(root)}: {text}" for text in check_file(root, path, layer, is_public=True))
    for path in sorted((root / "examples").glob("**/*.cpp")):
        yield from (f"{path.relative_to(root)}: {text}" for text in check_program(root, path, "an example"))


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
    found = list(problems(root))
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
