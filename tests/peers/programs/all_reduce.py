"""A PyTorch rank: joins a group through its environment variables, reduces, and writes the sum and
the port to a file. STORE_FAILS=RANK: that rank fails after the work of its first attempt.

  all_reduce.py            one rank
  all_reduce.py --serve S  imports torch once; each connection to socket S forks a rank
  all_reduce.py --by S     a rank that runs in that server, so that it starts in milliseconds
"""

import json
import os
import socket
import sys


def rank():
    import datetime

    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=20))
    tensor = torch.full((1000,), float(dist.get_rank() + 1))
    dist.all_reduce(tensor)
    name = f"{os.environ['RANK']}.{os.environ['TORCHELASTIC_RESTART_COUNT']}"
    with open(os.path.join(os.environ["STORE_OUT"], name), "w", encoding="ascii") as file:
        json.dump({"sums": sorted(set(tensor.tolist())), "port": int(os.environ["MASTER_PORT"])}, file)
    dist.barrier()
    dist.destroy_process_group()
    first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    return 3 if first and os.environ.get("STORE_FAILS") == os.environ["RANK"] else 0


def run_there(path):
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        connection.sendall(json.dumps(dict(os.environ)).encode() + b"\n")
        status = connection.recv(1)
    return status[0] if status else 1


def run_here(connection):
    """Runs a rank in a fork of the server."""
    status = 1
    try:
        os.environ.clear()
        os.environ.update(json.loads(connection.makefile().readline()))
        status = rank()
    finally:
        connection.sendall(bytes([status]))
        os._exit(status)


def serve(path):
    import signal

    import torch.distributed

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel removes ended ranks
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path + ".new")
        listener.listen(16)
        os.rename(path + ".new", path)  # when the file exists, clients can connect
        while True:
            connection, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                run_here(connection)
            connection.close()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(sys.argv[2])
    sys.exit(run_there(sys.argv[2]) if sys.argv[1:2] == ["--by"] else rank())
