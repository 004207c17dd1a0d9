"""One C++ rank and one PyTorch rank all-reduce in one Gloo group over a TCPStore."""

import os
import socket
import subprocess
from datetime import timedelta

import torch
import torch.distributed as dist


def listening_socket():
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    return listener


def test_one_cpp_and_one_python_rank(monkeypatch):
    program = os.path.join(os.environ["LOCKSTEP_BIN_DIR"], "test", "mixed_rank")
    listener = listening_socket()
    port = listener.getsockname()[1]
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    cpp = subprocess.Popen([program, "1", "2", str(port)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        store = dist.TCPStore(
            "127.0.0.1", port, 2, True, timeout=timedelta(seconds=60), master_listen_fd=listener.detach()
        )
        # What init_process_group does if it gets an init_method.
        dist.init_process_group(
            "gloo",
            store=dist.PrefixStore("default_pg", store),
            rank=0,
            world_size=2,
            timeout=timedelta(seconds=60),
        )
        tensor = torch.arange(5, dtype=torch.float64)
        dist.all_reduce(tensor)
        assert tensor.tolist() == [10.0, 12.0, 14.0, 16.0, 18.0]

        parts = [torch.empty(1), torch.empty(1)]
        dist.all_gather(parts, torch.tensor([0.5]))
        assert [part.item() for part in parts] == [0.5, 1.5]

        text = b"from Python"
        dist.broadcast(torch.tensor([len(text)]), src=0)
        dist.broadcast(torch.tensor(list(text), dtype=torch.uint8), src=0)
        dist.barrier()
        output, _ = cpp.communicate(timeout=60)
        assert cpp.returncode == 0, output
        assert output.split(maxsplit=3) == ["10", "18", "2", "from Python\n"]
    finally:
        cpp.kill()
        cpp.wait()
        if dist.is_initialized():
            dist.destroy_process_group()


def test_environment_rendezvous_with_a_cpp_rank(monkeypatch):
    """The same with init_method env://, with which PyTorch creates the store and its prefix."""
    program = os.path.join(os.environ["LOCKSTEP_BIN_DIR"], "test", "mixed_rank")
    # env:// takes only a number, so the port is released before PyTorch binds it.
    listener = listening_socket()
    port = listener.getsockname()[1]
    listener.close()
    for name, value in {
        "GLOO_SOCKET_IFNAME": "lo",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "RANK": "0",
        "WORLD_SIZE": "2",
    }.items():
        monkeypatch.setenv(name, value)
    cpp = subprocess.Popen([program, "1", "2", str(port)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        dist.init_process_group("gloo", timeout=timedelta(seconds=60))
        tensor = torch.arange(5, dtype=torch.float64)
        dist.all_reduce(tensor)
        assert tensor.tolist() == [10.0, 12.0, 14.0, 16.0, 18.0]
        dist.all_gather([torch.empty(1), torch.empty(1)], torch.tensor([0.5]))
        dist.broadcast(torch.tensor([2]), src=0)
        dist.broadcast(torch.tensor(list(b"hi"), dtype=torch.uint8), src=0)
        dist.barrier()
        output, _ = cpp.communicate(timeout=60)
        assert (cpp.returncode, output) == (0, "10 18 2 hi\n")
    finally:
        cpp.kill()
        cpp.wait()
        if dist.is_initialized():
            dist.destroy_process_group()
