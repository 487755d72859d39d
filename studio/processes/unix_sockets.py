"""Unix sockets between the processes of one home."""

import os
import select
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_MAX_ADDRESS_BYTES = 100
"""The longest socket path, in bytes, that every system supports."""


@contextmanager
def socket_address(path: Path) -> Iterator[str]:
    """Yield a socket's address; a path that is too long goes through an open folder handle."""
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
    """Connect to the process that listens on a socket.

    Raises:
        OSError: no process listens.

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
    """Read until the other side closes its end.

    Raises:
        OSError: it sends more than `most` bytes, or takes too long.

    """
    heard = bytearray()
    while part := line.recv(2**16):
        heard += part
        if len(heard) > most:
            raise OSError(f"Received more than {most:,} bytes.")
    return bytes(heard)


def is_hung_up(line: socket.socket | int) -> bool:
    """Whether the other side closed the connection completely, not only its sending half."""
    poll = select.poll()
    poll.register(line, 0)
    return any(event & select.POLLHUP for _, event in poll.poll(0))
