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
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(timeout)
    try:
        with socket_address(path) as address:
            sock.connect(address)
    except OSError:
        sock.close()
        raise
    return sock


def receive_all(sock: socket.socket, max_bytes: int) -> bytes:
    """Read until the other side closes its end.

    Raises:
        OSError: it sends more than `most` bytes, or takes too long.

    """
    received = bytearray()
    while chunk := sock.recv(2**16):
        received += chunk
        if len(received) > max_bytes:
            raise OSError(f"Received more than {max_bytes:,} bytes.")
    return bytes(received)


def is_hung_up(sock: socket.socket | int) -> bool:
    """Whether the other side closed the connection completely, not only its sending half."""
    poll = select.poll()
    poll.register(sock, 0)
    return any(event & select.POLLHUP for _, event in poll.poll(0))
