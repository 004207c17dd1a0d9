"""script/setup in a separate checkout, with the real pip and a package index on this machine.

The faults are real: a closed port, a killed download, a full file system. Programs in PATH replace
Debian's tools, because a test must not install packages.
"""

import base64
import fcntl
import functools
import hashlib
import http.server
import io
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import unittest
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[3]
VERSION_H = "include/torch/headeronly/version.h"
TORCH_H = "include/torch/csrc/api/include/torch/torch.h"


def supported(key):
    return re.search(rf"^{key} (.*)$", (ROOT / "cmake/torch-versions").read_text(), re.MULTILINE).group(1)


OLDEST, NEWEST, DEFAULT = supported("oldest"), supported("newest"), supported("default")


def version_header(version):
    parts = zip(("MAJOR", "MINOR", "PATCH"), version.split("."))
    return "".join(f"#define TORCH_VERSION_{name} {number}\n" for name, number in parts)


def shared_library():
    """The bytes of a library that can be loaded: the C library of this machine."""
    path = re.search(r"(/\S*/libc[.-]\S*)$", pathlib.Path("/proc/self/maps").read_text(), re.MULTILINE).group(1)
    return pathlib.Path(path).read_bytes()


def torch_files(version):
    return {"torch/lib/libtorch_cpu.so": shared_library(), f"torch/{TORCH_H}": "",
            f"torch/{VERSION_H}": version_header(version)}


def wheel(name, version, files, metadata=""):
    """(file name, bytes) of a wheel, not compressed."""
    info = f"{name}-{version}.dist-info"
    files = {**files, f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{metadata}",
             f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"}
    record, buffer = "", io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path, content in files.items():
            content = content if isinstance(content, bytes) else content.encode()
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            record += f"{path},sha256={digest},{len(content)}\n"
            archive.writestr(path, content)
        archive.writestr(f"{info}/RECORD", record + f"{info}/RECORD,,\n")
    return f"{name}-{version}-py3-none-any.whl", buffer.getvalue()


@functools.cache
def all_wheels():
    required = ("Requires-Dist: sympy\nRequires-Dist: nvidia-nccl-cu13==2.1; platform_system == \"Linux\"\n"
                "Requires-Dist: cuda-toolkit[cublas,cudart,cupti]==13.0.2; platform_system == \"Linux\"\n")
    torch = [wheel("torch", v, torch_files(v), required) for v in {DEFAULT, f"{OLDEST}.0", f"{NEWEST}.0"}]
    # As for torchvision: one version for exactly one PyTorch, and a later one for all PyTorch versions from then on.
    vision = [wheel("torchvision", v, {}, f"Requires-Dist: torch{torch_version}\n")
              for v, torch_version in (("0.1", f"=={OLDEST}.0"), ("0.2", f">={NEWEST}.0"))]
    parts = {"cudart": "nvidia-cuda-runtime", "cupti": "nvidia-cuda-cupti", "cccl": "nvidia-cuda-cccl",
             "crt": "nvidia-cuda-crt", "nvcc": "nvidia-cuda-nvcc", "nvvm": "nvidia-nvvm", "cublas": "nvidia-cublas",
             "cusolver": "nvidia-cusolver", "cusparse": "nvidia-cusparse"}
    extras = "".join(f"Provides-Extra: {extra}\nRequires-Dist: {name}==1.0.*; (sys_platform == 'linux') and extra == '{extra}'\n"
                     for extra, name in parts.items())
    files = {extra: {f"nvidia/cu13/lib/lib{extra}.so.13": "", f"nvidia/cu13/include/{extra}.h": ""} for extra in parts}
    files["nvcc"] = {"nvidia/cu13/bin/nvcc": ""}
    return dict([*torch, *vision, wheel("sympy", "1.0", {}), wheel("cuda_toolkit", "13.0.2", {}, extras),
                 wheel("nvidia_nccl_cu13", "2.1", {"nvidia/nccl/include/nccl.h": "", "nvidia/nccl/lib/libnccl.so.2": ""}),
                 *(wheel(name.replace("-", "_"), "1.0.5", files[extra]) for extra, name in parts.items())])


class Index:
    """A package index on a port of this machine. `stalled` is set while the download of a torch wheel hangs."""

    def __init__(self, stalls=False):
        self.stalled, self.go_on = threading.Event(), threading.Event()
        index = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                *_, project, name = self.path.split("/")
                wheels = all_wheels()
                if name in wheels:
                    self.answer(wheels[name], "application/octet-stream", stalls=stalls and project == "torch")
                    return
                links = [f'<a href="/files/{project}/{w}">{w}</a>' for w in wheels
                         if w.split("-")[0].replace("_", "-") == project]
                self.answer("\n".join(links).encode(), "text/html")

            def answer(self, body, kind, stalls=False):
                self.send_response(200)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                try:
                    self.wfile.write(body[:len(body) // 2])
                    if stalls and not index.go_on.is_set():
                        self.wfile.flush()
                        index.stalled.set()
                        index.go_on.wait()
                    self.wfile.write(body[len(body) // 2:])
                except OSError:
                    pass  # the client was killed

            def log_message(self, *args):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}/simple"

    def close(self):
        self.go_on.set()
        self.server.shutdown()
        self.server.server_close()


DPKG_QUERY = """#!/bin/bash
for package in "${@:3}"; do [[ " $MISSING " == *" $package "* ]] || printf 'installed:%s ' "$package"; done
"""
APT_GET = """#!/bin/bash
echo "W: Failed to fetch http://mirror.invalid/InRelease  Temporary failure resolving 'mirror.invalid'" >&2
echo "E: Unable to locate package cmake" >&2
exit 100
"""
# Downloads one package, and unpacks it into a library and a link to it, as zlib1g-dev has one.
ARM_APT_GET = """#!/bin/bash
for argument; do [[ $argument == Dir::Cache=* ]] && cache=${argument#*=}; done
[[ " $* " == *" update "* ]] || { echo "$*" >"$cache/../../../apt"; : >"$cache/archives/library.deb"; }
"""
DPKG_DEB = """#!/bin/bash
[[ $1 == --extract && -f $2 ]] || exit 1
mkdir -p "$3"/lib "$3"/usr/lib
: >"$3/lib/libz.so.1"
ln -s /lib/libz.so.1 "$3/usr/lib/libz.so"
"""


class SetupTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name) / "checkout"
        for name in ["script/setup", "script/torch.sh", "cmake/torch-versions"]:
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, self.root / name)
        self.stubs = pathlib.Path(folder.name) / "bin"
        self.stubs.mkdir()
        self.stub("dpkg-query", DPKG_QUERY)
        os.chmod(folder.name, 0o755)  # for the test without root
        python = pathlib.Path(sys.executable)
        self.stub("python3", f'#!/bin/bash\nexec {python} "$@"\n')
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith(("PIP_", "PYTHON", "LOCKSTEP_"))}
        self.environment |= {"PATH": f"{self.stubs}:{os.environ['PATH']}", "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1",
                             "PIP_CONFIG_FILE": "/dev/null", "PIP_RETRIES": "0", "PIP_NO_CACHE_DIR": "1",
                             "PIP_NO_INPUT": "1"}

    def stub(self, name, text):
        path = self.stubs / name
        path.write_text(text)
        path.chmod(0o755)

    def serve(self, **options):
        index = Index(**options)
        self.addCleanup(index.close)
        self.environment["PIP_INDEX_URL"] = index.url
        return index

    def offline(self):
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            self.environment["PIP_INDEX_URL"] = f"http://127.0.0.1:{unused.getsockname()[1]}/simple"

    def run_setup(self, *arguments, prefix=(), **variables):
        return subprocess.run([*prefix, "script/setup", *arguments], cwd=self.root, text=True, capture_output=True,
                              env=self.environment | variables, timeout=50, check=False)

    def assert_ready(self, result, version):
        self.assertEqual(result.returncode, 0, result)
        self.assertEqual(os.readlink(self.root / ".deps/torch"), f"torch-{version}/torch")
        self.assertTrue((self.root / ".deps/torch/lib/libtorch_cpu.so").exists())
        self.assertFalse((self.root / ".deps/incoming").exists())

    def assert_refused(self, result, pattern):
        self.assertEqual(result.returncode, 1, result)
        self.assertRegex(result.stderr, pattern)
        self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
        deps = self.root / ".deps"
        left = sorted(path.name for path in deps.iterdir()) if deps.exists() else []
        self.assertIn(left, ([], [".lock"]))

    def other_torch(self, version):
        folder = self.root.parent / "other"
        for name, content in torch_files(version).items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        (folder / "torch/__init__.py").write_text("")
        return folder

    def test_first_call_fetches_what_the_wheel_requires(self):
        self.serve()
        self.assert_ready(self.run_setup(), DEFAULT)
        libraries = sorted(p.name for p in (self.root / f".deps/torch-{DEFAULT}/nvidia/cu13/lib").iterdir())
        self.assertEqual(libraries, ["libcudart.so.13", "libcupti.so.13"])

    def cuda_files(self):
        folder = self.root / f".deps/torch-{DEFAULT}/nvidia"
        return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}

    def test_cuda_brings_nvcc_and_what_the_wheel_requires(self):
        self.serve()
        self.assert_ready(self.run_setup("--cuda"), DEFAULT)
        self.assertLessEqual({"cu13/bin/nvcc", "cu13/lib/libnvvm.so.13", "cu13/lib/libcublas.so.13", "nccl/lib/libnccl.so.2",
                              "nccl/include/nccl.h"}, self.cuda_files())
        self.offline()
        self.assert_ready(self.run_setup("--cuda", "--cuda-compile", "--quiet"), DEFAULT)

    def test_cuda_compile_takes_only_headers_of_large_libraries(self):
        self.serve()
        self.run_setup()
        before = (self.root / ".deps/changed").stat().st_mtime_ns
        self.assert_ready(self.run_setup("--cuda-compile"), DEFAULT)
        self.assertGreater((self.root / ".deps/changed").stat().st_mtime_ns, before)
        files = self.cuda_files()
        self.assertLessEqual({"cu13/bin/nvcc", "cu13/lib/libcudart.so.13", "cu13/include/cublas.h", "cu13/include/cusolver.h",
                              "cu13/include/cusparse.h", "nccl/include/nccl.h"}, files)
        self.assertFalse({"cu13/lib/libcublas.so.13", "nccl/lib/libnccl.so.2"} & files)

    def test_second_call_does_nothing(self):
        self.serve()
        self.run_setup()
        before = (self.root / ".deps/changed").stat().st_mtime_ns
        self.stub("python3", "#!/bin/bash\nexit 1\n")
        result = self.run_setup("--quiet")
        self.assert_ready(result, DEFAULT)
        self.assertEqual(result.stdout + result.stderr, "")
        self.assertEqual((self.root / ".deps/changed").stat().st_mtime_ns, before)

    def test_versions_side_by_side(self):
        self.serve()
        self.assert_ready(self.run_setup("--torch", "oldest"), f"{OLDEST}.0")
        self.assert_ready(self.run_setup(), f"{OLDEST}.0")
        self.assert_ready(self.run_setup("--also-torch", "default"), f"{OLDEST}.0")
        self.assert_ready(self.run_setup("--also-torch", "newest"), f"{OLDEST}.0")
        self.offline()
        self.assert_ready(self.run_setup("--torch", "default"), DEFAULT)
        self.assert_ready(self.run_setup("--torch", OLDEST), f"{OLDEST}.0")
        self.assert_ready(self.run_setup("--torch", "newest"), f"{NEWEST}.0")

    def test_peers_have_the_pytorch_of_the_libtorch_in_use(self):
        self.serve()
        requirements = self.root / "tests/peers/requirements.txt"
        requirements.parent.mkdir(parents=True)
        shutil.copy2(ROOT / "tests/peers/requirements.txt", requirements)
        self.assertIn("torchvision\n", requirements.read_text())
        requirements.write_text("torchvision\n")
        for version, vision in ((f"{OLDEST}.0", "0.1"), (f"{NEWEST}.0", "0.2")):
            self.assert_ready(self.run_setup("--peers", "--torch", version), version)
            installed = {path.name for path in self.root.glob(".deps/peers/lib/*/site-packages/*.dist-info")}
            self.assertLessEqual({f"torch-{version}.dist-info", f"torchvision-{vision}.dist-info"}, installed)
        self.offline()
        self.assert_ready(self.run_setup("--peers"), f"{NEWEST}.0")

    def test_aarch64_has_libraries_and_a_torch_of_its_own(self):
        self.serve()
        self.stub("apt-get", ARM_APT_GET)
        self.stub("dpkg-deb", DPKG_DEB)
        self.assert_ready(self.run_setup("--aarch64"), DEFAULT)
        call = (self.root / "apt").read_text()
        self.assertIn("APT::Architectures=arm64", call)
        self.assertIn(" zlib1g-dev", call)
        self.assertNotIn("libopenmpi-dev", call)
        folder = self.root / ".deps/aarch64"
        self.assertEqual(os.readlink(folder / "root/usr/lib/libz.so"), "../../lib/libz.so.1")
        self.assertIn("CPU implementer : 0x41", (folder / "arm_root/proc/cpuinfo").read_text())
        self.assertTrue((folder / "arm_root/usr/lib/libz.so").exists())
        self.assertEqual(os.readlink(folder / "torch"), f"torch-{DEFAULT}/torch")
        self.assertEqual(sorted(p.name for p in (folder / f"torch-{DEFAULT}/nvidia/cu13/lib").iterdir()),
                         ["libcudart.so.13", "libcupti.so.13"])
        self.offline()
        self.stub("apt-get", APT_GET)
        result = self.run_setup("--aarch64", "--quiet")
        self.assert_ready(result, DEFAULT)
        self.assertEqual(result.stdout + result.stderr, "")

    def test_aarch64_without_network(self):
        self.serve()
        self.run_setup()
        self.stub("apt-get", APT_GET)
        result = self.run_setup("--aarch64")
        self.assertEqual(result.returncode, 1, result)
        self.assertRegex(result.stderr, r"^setup: apt-get could not download the arm64 packages \(Failed to fetch .*\); check the network")
        self.assertFalse((self.root / ".deps/aarch64").exists())

    def test_unsupported_version(self):
        major, minor = NEWEST.split(".")
        for version in [f"{major}.{int(minor) + 1}", "1.13.1"]:
            self.assert_refused(self.run_setup("--torch", version), f"supports LibTorch {OLDEST} to {NEWEST}, not {version}")
        self.assert_refused(self.run_setup("--also-torch", "latest"), "not a LibTorch version: latest")

    def test_folder_of_the_old_layout_is_replaced(self):
        self.serve()
        shutil.copytree(self.other_torch(DEFAULT) / "torch", self.root / ".deps/torch")
        self.assert_ready(self.run_setup(), DEFAULT)

    def test_torch_dir(self):
        folder = self.other_torch(DEFAULT) / "torch"
        result = self.run_setup(LOCKSTEP_TORCH_DIR=str(folder))
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        (folder / VERSION_H).write_text(version_header("2.10.0"))
        self.assert_refused(self.run_setup(LOCKSTEP_TORCH_DIR=str(folder)),
                            f"LOCKSTEP_TORCH_DIR has LibTorch 2.10.0, and Lockstep supports {OLDEST} to {NEWEST}")
        (folder / "lib/libtorch_cpu.so").unlink()
        self.assert_refused(self.run_setup(LOCKSTEP_TORCH_DIR=str(folder)), "LOCKSTEP_TORCH_DIR has no LibTorch")

    def test_python_torch_is_used_when_supported(self):
        self.offline()
        folder = self.other_torch(DEFAULT)
        result = self.run_setup(PYTHONPATH=str(folder))
        self.assertEqual(result.returncode, 0, result)
        self.assertIn(f"LibTorch {DEFAULT} in {folder}/torch", result.stdout)

    def test_python_torch_of_another_version_is_not_used(self):
        self.serve()
        result = self.run_setup(PYTHONPATH=str(self.other_torch("2.10.0")))
        self.assert_ready(result, DEFAULT)
        self.assertIn(f"python3 has torch 2.10.0, and Lockstep supports {OLDEST} to {NEWEST}", result.stdout)

    def test_without_root(self):
        prefix = ["setpriv", "--reuid=65534", "--clear-groups"] if os.geteuid() == 0 else []
        result = self.run_setup(prefix=prefix, MISSING="cmake mold")
        self.assertEqual(result.returncode, 1, result)
        self.assertIn("sudo sh -c 'apt-get update && apt-get install -y --no-install-recommends cmake mold'\n", result.stderr)
        self.assertFalse((self.root / ".deps").exists())

    def test_apt_without_network(self):
        self.stub("apt-get", APT_GET)
        self.stub("id", "#!/bin/bash\necho 0\n")
        self.assert_refused(self.run_setup(MISSING="cmake python3-pip"),
                            r"apt-get could not install the packages \(Failed to fetch .*\); check the network")

    def test_pip_without_network(self):
        self.offline()
        self.assert_refused(self.run_setup(), "pip could not reach its package index; check the network")

    def test_version_that_the_index_lacks(self):
        self.serve()
        self.assert_refused(self.run_setup("--torch", f"{NEWEST}.9"), rf"pip could not install torch=={NEWEST}.9 \(.+\)")

    def kill_in_the_middle(self):
        """Kills script/setup and all its processes during the download of a wheel, as a crash does."""
        index = self.serve(stalls=True)
        setup = subprocess.Popen(["script/setup"], cwd=self.root, env=self.environment, stdout=subprocess.DEVNULL)
        self.assertTrue(index.stalled.wait(30))
        for pid in [setup.pid, *descendants(setup.pid)]:
            os.kill(pid, signal.SIGKILL)
        setup.wait()
        self.assertTrue((self.root / ".deps/incoming").exists())
        self.assertFalse((self.root / ".deps/torch").exists())
        return index

    def test_killed_download(self):
        self.kill_in_the_middle().go_on.set()
        self.assert_ready(self.run_setup(), DEFAULT)

    def test_terminated_download_leaves_nothing(self):
        index = self.serve(stalls=True)
        setup = subprocess.Popen(["script/setup"], cwd=self.root, env=self.environment, stdout=subprocess.DEVNULL)
        self.assertTrue(index.stalled.wait(30))
        setup.send_signal(signal.SIGTERM)
        self.assertEqual(setup.wait(20), 143)
        self.assertEqual([p.name for p in (self.root / ".deps").iterdir()], [".lock"])
        with open(self.root / ".deps/.lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # its processes hold the lock until they have ended

    def test_second_setup_waits_for_the_first(self):
        index = self.serve(stalls=True)
        first = subprocess.Popen(["script/setup"], cwd=self.root, env=self.environment, stdout=subprocess.DEVNULL)
        self.assertTrue(index.stalled.wait(30))
        second = subprocess.Popen(["script/setup"], cwd=self.root, env=self.environment, stdout=subprocess.PIPE, text=True)
        self.assertIn("waiting for another script/setup", second.stdout.readline())
        index.go_on.set()
        rest = second.communicate(timeout=30)[0]
        self.assertEqual((first.wait(30), second.returncode), (0, 0))
        self.assertNotIn("fetching", rest)

    def test_full_disk(self):
        self.serve()
        namespace = ["unshare", "--mount"] + (["--map-root-user"] if os.geteuid() != 0 else [])
        script = "mkdir .deps && mount -t tmpfs -o size=1m none .deps && script/setup; status=$?; ls -A .deps; exit $status"
        result = subprocess.run([*namespace, "bash", "-c", script], cwd=self.root, env=self.environment, text=True,
                                capture_output=True, timeout=50, check=False)
        self.assertEqual(result.returncode, 1, result)
        self.assertRegex(result.stderr, r"\Asetup: no space is left for .deps \(.* free\), .*\n\Z")
        self.assertEqual(result.stdout.splitlines()[-1], ".lock")


def descendants(pid):
    children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [p for child in map(int, children) for p in [child, *descendants(child)]]


class DocumentationTest(unittest.TestCase):
    def test_every_stated_range_is_the_supported_one(self):
        stated = {}
        for name in ["README.md", "docs/development.md"]:
            found = re.findall(r"LibTorch (\d+\.\d+) (?:or newer, )?up to (\d+\.\d+)", (ROOT / name).read_text())
            self.assertTrue(found, f"{name} states no range of LibTorch versions")
            stated[name] = set(found)
        self.assertEqual(set.union(*stated.values()), {(OLDEST, NEWEST)}, stated)


if __name__ == "__main__":
    unittest.main()
