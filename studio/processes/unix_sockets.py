"""Unix sockets between processes of one home: where they are, and how one is listened to."""

import os
import select
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_MAX_ADDRESS_BYTES = 100
"""Bytes of a socket's path that every system takes."""


@contextmanager
def socket_address(path: Path) -> Iterator[str]:
    """Give a socket's address. One too long for the system is gone round by an open folder."""
    plain = str(path)
    if len(os.fsencode(plain)) <= _MAX_ADDRESS_BYTES:
        yield plain
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def connect(path: Path, timeout: float) -> socket.socket:
    """Connect to whoever listens there.

    Raises:
        OSError: nobody does.

    """
    line = socket.socket(socket.AF_UNIX)
    line.settimeout(timeout)
    try:
        with socket_address(path) as where:
            line.connect(where)
    except OSError:
        line.close()
        raise
    return line


def receive_all(line: socket.socket, most: int) -> bytes:
    """Read what is said until the other side has said all.

    Raises:
        OSError: it says too much, or takes too long.

    """
    heard = bytearray()
    while part := line.recv(2**16):
        heard += part
        if len(heard) > most:
            raise OSError(f"More than {most:,} bytes were said.")
    return bytes(heard)


def is_hung_up(line: socket.socket | int) -> bool:
    """Whether the other side has hung up altogether, and not only said all it had to say."""
    poll = select.poll()
    poll.register(line, 0)
    return any(event & select.POLLHUP for _, event in poll.poll(0))
