"""Network namespaces as nodes, and the switch between them.

Every node is a namespace with one TUN device; the other end of all devices is a switch in this process. The switch can
delay, drop, reorder, throttle and cut the packets from one node to another, separately for each direction. Addresses are
10.77.0.1, 10.77.0.2, ... and exist inside these namespaces only.
"""

import contextlib
import dataclasses
import fcntl
import heapq
import os
import random
import select
import socket
import struct
import subprocess
import threading
import time

TUNSETIFF = 0x400454CA
IFF_TUN, IFF_NO_PI = 0x0001, 0x1000
MAX_PACKET = 65536


@dataclasses.dataclass
class Link:
    """What happens to packets in one direction between two nodes."""

    delay: float = 0.0           # seconds
    loss: float = 0.0            # fraction of packets
    drop_every: int = 0          # every n-th packet is lost, never two in a row; 0: none
    reorder: float = 0.0         # fraction of packets that are delayed behind later ones
    reorder_delay: float = 0.03  # seconds by which these are delayed
    rate: float = 0.0            # bytes per second; 0: unlimited
    cut: bool = False
    packets: int = 0             # packets from the sender
    segments: int = 0            # packets with TCP data that were delivered
    free_at: float = 0.0         # with a rate: when the last packet is through


class Switch(threading.Thread):
    """Carries packets between TUN devices."""

    def __init__(self, devices, seed):
        super().__init__(name="switch", daemon=True)
        self.devices = devices  # node -> file descriptor
        self.random = random.Random(seed)
        self.links = {(a, b): Link() for a in devices for b in devices if a != b}
        self.dropped = self.overtaken = 0
        self._node_of = {socket.inet_aton(address(node)): node for node in devices}
        self._waiting = []
        self._number = 0
        self._wake, self._waker = os.pipe()

    def run(self):
        poller = select.poll()
        source = {fd: node for node, fd in self.devices.items()}
        for fd in (*source, self._wake):
            poller.register(fd, select.POLLIN)
        while True:
            for fd, _ in poller.poll(self._time_left()):
                if fd == self._wake:
                    return
                with contextlib.suppress(OSError):  # none left, or the device is down
                    while packet := os.read(fd, MAX_PACKET):
                        self._forward(source[fd], packet)
            self._deliver()

    def _time_left(self):
        return max(0.0, self._waiting[0][0] - time.monotonic()) * 1000 if self._waiting else None

    def _forward(self, source, packet):
        target = self._node_of.get(packet[16:20]) if packet[0] >> 4 == 4 else None
        link = self.links.get((source, target))
        if link is None:
            return
        link.packets += 1
        is_its_turn = link.drop_every and link.packets % link.drop_every == 0
        if link.cut or is_its_turn or self.random.random() < link.loss:
            self.dropped += 1
            return
        due = time.monotonic() + link.delay
        if self.random.random() < link.reorder:
            self.overtaken += 1
            due += link.reorder_delay
        if link.rate:
            due = link.free_at = max(due, link.free_at) + len(packet) / link.rate
        self._number += 1
        heapq.heappush(self._waiting, (due, self._number, source, target, packet))

    def _deliver(self):
        while self._waiting and self._waiting[0][0] <= time.monotonic():
            _, _, source, target, packet = heapq.heappop(self._waiting)
            with contextlib.suppress(OSError):  # the device is down
                os.write(self.devices[target], packet)
                self.links[source, target].segments += holds_tcp_data(packet)

    def stop(self):
        os.write(self._waker, b"x")
        self.join()
        os.close(self._wake)
        os.close(self._waker)


def holds_tcp_data(packet):
    header = (packet[0] & 15) * 4
    return packet[9] == socket.IPPROTO_TCP and len(packet) > header + (packet[header + 12] >> 4) * 4


def address(node):
    return f"10.77.0.{node + 1}"


def ip(*arguments, batch=None):
    command = ["ip", *arguments, *(["-batch", "-"] if batch else [])]
    done = subprocess.run(command, input=batch, text=True, capture_output=True)
    if done.returncode != 0:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}{f' in: {batch}' if batch else ''}")


class Network:
    """A number of nodes, each connected to all others."""

    def __init__(self, name, num_nodes, seed=1):
        self.name = name
        self.nodes = range(num_nodes)
        self._devices = {}
        self._namespaces = []
        self.switch = None
        try:
            for node in self.nodes:
                self._add(node)
            self.switch = Switch(self._devices, seed)
            self.switch.start()
        except BaseException:
            self.close()
            raise

    def _add(self, node):
        namespace = self.namespace(node)
        ip("netns", "add", namespace)
        self._namespaces.append(namespace)
        fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self._devices[node] = fd
        # A unique name until the device is in its namespace.
        device = f"ls{os.getpid()}.{node}"
        fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", device.encode(), IFF_TUN | IFF_NO_PI))
        ip("link", "set", device, "netns", namespace, "name", "cable")
        ip("-n", namespace, batch=f"link set lo up\naddr add {address(node)}/24 dev cable\nlink set cable up\n")

    def namespace(self, node):
        return f"{self.name}-{node}"

    def inside(self, node):
        """The prefix of a command that runs on a node, with the node's host name, and ends with this process."""
        return ["setpriv", "--pdeathsig", "KILL", "nsenter", f"--net=/run/netns/{self.namespace(node)}", "unshare", "--uts",
                "sh", "-c", 'hostname "$0" && exec "$@"', f"node{node}"]

    def set_links(self, *, node=None, **how):
        """Changes all links, or all links of one node."""
        for (a, b), link in self.switch.links.items():
            if node in (None, a, b):
                for name, value in how.items():
                    setattr(link, name, value)

    def unplug(self, node):
        ip("-n", self.namespace(node), "link", "set", "cable", "down")

    def plug(self, node):
        ip("-n", self.namespace(node), "link", "set", "cable", "up")

    def close(self):
        if self.switch:
            self.switch.stop()
        for fd in self._devices.values():
            os.close(fd)  # this removes the device
        for namespace in self._namespaces:
            ip("netns", "del", namespace)
