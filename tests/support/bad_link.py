"""Machines in network namespaces, joined by a switch that loses, delays and repeats packets.

The packets pass through this process, as the kernel's own netem is not in every kernel.
"""

import fcntl
import heapq
import os
import random
import selectors
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex

_TUN = Path("/dev/net/tun")
_TUNSETIFF = 0x400454CA
_TUN_WITHOUT_HEADER = 0x0001 | 0x1000
_PACKET_BYTES = 65536
_DESTINATION = slice(16, 20)
"""Where an IPv4 packet has the address of its destination."""


def missing_reason() -> str:
    """Return why there can be no namespaces here; empty if there can."""
    if sys.platform != "linux" or shutil.which("ip") is None or not _TUN.exists():
        return "Network namespaces need Linux, `ip` and /dev/net/tun."
    name = f"try-{token_hex(3)}"
    try:
        _ip("netns", "add", name)
    except subprocess.CalledProcessError as error:
        return f"Network namespaces cannot be made: {error.stderr.decode().strip()}"
    _ip("netns", "delete", name)
    return ""


@dataclass(frozen=True, slots=True)
class Machine:
    """A network namespace with one address."""

    name: str
    address: str

    def command(self, *words: str) -> list[str]:
        """Return how to run a command there."""
        return ["ip", "netns", "exec", self.name, *words]


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    loss: float = 0.0
    """The share of packets that are dropped."""
    duplicates: float = 0.0
    """The share of packets that arrive twice."""
    delay_seconds: float = 0.0
    """Each packet is late by a random time up to this, so that packets overtake each other."""


@dataclass(slots=True)
class BadLink:
    faults: Faults
    seed: int = 1
    cut_off: set[str] = field(default_factory=set)
    """The addresses to and from which nothing passes."""
    counts: Counter[str] = field(default_factory=Counter)
    """How many packets were forwarded, lost, repeated and overtaken."""
    _devices: dict[bytes, int] = field(default_factory=dict)
    """By address."""
    _waiting: list[tuple[float, int, bytes]] = field(default_factory=list)
    _random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)  # noqa: S311 -- which packets is no secret

    @contextmanager
    def joining(self, *names: str) -> Iterator[list[Machine]]:
        """Make machines, and forward packets between them."""
        own = token_hex(3)
        with ExitStack() as stack:
            machines = [
                self._add(stack, Machine(f"{name}-{own}", f"10.77.0.{number}"), f"t{own}{number}")
                for number, name in enumerate(names, 1)
            ]
            stop = threading.Event()
            thread = threading.Thread(target=self._forward, args=(stop,), daemon=True)
            thread.start()
            stack.callback(thread.join)
            stack.callback(stop.set)
            yield machines

    def _add(self, stack: ExitStack, machine: Machine, device: str) -> Machine:
        _ip("netns", "add", machine.name)
        stack.callback(_ip, "netns", "delete", machine.name)
        file = os.open(_TUN, os.O_RDWR | os.O_NONBLOCK)
        stack.callback(os.close, file)
        request = struct.pack("16sH22x", device.encode(), _TUN_WITHOUT_HEADER)
        fcntl.ioctl(file, _TUNSETIFF, request)
        _ip("link", "set", device, "netns", machine.name)
        there = ("-n", machine.name)
        _ip(*there, "address", "add", f"{machine.address}/24", "dev", device)
        _ip(*there, "link", "set", device, "up")
        _ip(*there, "link", "set", "lo", "up")
        self._devices[socket.inet_aton(machine.address)] = file
        return machine

    def _forward(self, stop: threading.Event) -> None:
        with selectors.DefaultSelector() as selector:
            for file in self._devices.values():
                selector.register(file, selectors.EVENT_READ)
            while not stop.is_set():
                due = self._waiting[0][0] - time.monotonic() if self._waiting else 0.05
                for key, _ in selector.select(max(0.0, min(due, 0.05))):
                    with suppress(BlockingIOError):
                        self._take(os.read(key.fd, _PACKET_BYTES))
                self._deliver()

    def _take(self, packet: bytes) -> None:
        sender, target = packet[12:16], packet[_DESTINATION]
        ends = {socket.inet_ntoa(sender), socket.inet_ntoa(target)}
        if target not in self._devices or ends & self.cut_off:
            return
        if self._random.random() < self.faults.loss:
            self.counts["lost"] += 1
            return
        is_repeated = self._random.random() < self.faults.duplicates
        self.counts["repeated"] += is_repeated
        for _ in range(1 + is_repeated):
            at = time.monotonic() + self._random.uniform(0, self.faults.delay_seconds)
            self.counts["overtaken"] += any(at < other for other, *_ in self._waiting)
            heapq.heappush(self._waiting, (at, self.counts["forwarded"], packet))
            self.counts["forwarded"] += 1

    def _deliver(self) -> None:
        while self._waiting and self._waiting[0][0] <= time.monotonic():
            packet = heapq.heappop(self._waiting)[2]
            with suppress(OSError):
                os.write(self._devices[packet[_DESTINATION]], packet)


def _ip(*words: str) -> None:
    subprocess.run(["/usr/bin/env", "ip", *words], check=True, capture_output=True)
