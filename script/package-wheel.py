#!/usr/bin/env python3
"""Writes the wheels of installed folders: called by script/package.

The wheel has no Python code. Its files go to the prefix of the environment that pip installs into (bin, lib, include,
share), so a wheel, a Debian package and `cmake --install` give the same tree. auditwheel reads from the programs which
systems they run on, and names the wheel after them.
"""

import argparse
import base64
import hashlib
import pathlib
import platform
import shutil
import subprocess
import sys
import zipfile

# Found where they are installed: LibTorch and what comes with it, MPI; for the GPU plugin, the library in the other wheel.
EXTERNAL = ("libtorch_cpu.so", "libtorch_cuda.so", "libc10.so", "libc10_cuda.so", "libcudart.so.*", "libmpi.so.*",
            "liblockstep_core.so")

SUMMARY = {
    "lockstep": "Distributed training for C++ and a fast launcher for any job",
    "lockstep-cuda": "GPU plugin of Lockstep for NVIDIA GPUs",
}


def requirements(name, version, torch):
    """The lines of METADATA about other packages."""
    oldest, newest = torch[0], torch[-1]
    major, minor = newest.split(".")
    # --torch of script/package may leave out versions between.
    missing = "".join(f",!={major}.{i}.*" for i in range(int(oldest.split(".")[1]), int(minor)) if f"{major}.{i}" not in torch)
    supported = f"torch>={oldest},<{major}.{int(minor) + 1}{missing}"
    if name == "lockstep":
        return [f'Provides-Extra: train\nRequires-Dist: {supported}; extra == "train"']
    return [f"Requires-Dist: lockstep=={version}", f"Requires-Dist: {supported}"]


def metadata(name, version, torch):
    lines = [
        "Metadata-Version: 2.1",
        f"Name: {name}",
        f"Version: {version}",
        f"Summary: {SUMMARY[name]}",
        "License: MIT",
        "Requires-Python: >=3.8",
        *requirements(name, version, torch),
    ]
    return "\n".join(lines) + "\n"


def place(name, version, path):
    """The path in the wheel of a file of the installed folder."""
    root = f"{name.replace('-', '_')}-{version}.data"
    if path.parts[0] == "bin":
        return f"{root}/scripts/{'/'.join(path.parts[1:])}"
    return f"{root}/data/{path.as_posix()}"


def record_line(path, data):
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"{path},sha256={digest},{len(data)}"


def write_wheel(name, version, torch, folder, output):
    info = f"{name.replace('-', '_')}-{version}.dist-info"
    tag = f"py3-none-linux_{platform.machine()}"
    path = output / f"{name.replace('-', '_')}-{version}-{tag}.whl"
    record = []
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as wheel:

        def add(target, data, mode=0o644):
            entry = zipfile.ZipInfo(target, date_time=(1980, 1, 1, 0, 0, 0))
            entry.external_attr = (0o100000 | mode) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            wheel.writestr(entry, data)
            record.append(record_line(target, data))

        for file in sorted(folder.rglob("*")):
            if file.is_file():
                relative = file.relative_to(folder)
                add(place(name, version, relative), file.read_bytes(), file.stat().st_mode & 0o777)
        add(f"{info}/METADATA", metadata(name, version, torch).encode())
        about = f"Wheel-Version: 1.0\nGenerator: lockstep\nRoot-Is-Purelib: false\nTag: {tag}\n"
        add(f"{info}/WHEEL", about.encode())
        record.append(f"{info}/RECORD,,")
        wheel.writestr(f"{info}/RECORD", "\n".join(record) + "\n")
    return path


def repair(wheel, output):
    """Lets auditwheel name the wheel by the systems that it runs on."""
    # auditwheel does not know where pip will put the files, so it would add the wheel's own libraries once more.
    with zipfile.ZipFile(wheel) as content:
        own = [path.name for path in map(pathlib.PurePath, content.namelist()) if ".so" in path.name]
    excluded = [word for name in (*EXTERNAL, *own) for word in ("--exclude", name)]
    command = ["auditwheel", "repair", "--plat", "auto", "--wheel-dir", str(output), *excluded, str(wheel)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"package: auditwheel refused {wheel.name}:\n{done.stdout}{done.stderr}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--version", required=True)
    parser.add_argument("--torch", nargs="+", required=True)
    parser.add_argument("--stage", type=pathlib.Path, required=True)
    parser.add_argument("--work", type=pathlib.Path, required=True)
    parser.add_argument("--output", type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    shutil.rmtree(arguments.work, ignore_errors=True)
    arguments.work.mkdir(parents=True)
    for name in SUMMARY:
        wheel = write_wheel(name, arguments.version, arguments.torch, arguments.stage / name, arguments.work)
        repair(wheel, arguments.output)


main()
