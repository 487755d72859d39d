"""Where the web process listens."""

import asyncio
import socket

import pytest

from studio.commands import serve
from studio.commands.login_link import Address
from studio.errors import ConflictError
from tests.support.live_studio import free_port


def test_accepted_connections_disable_nagle_algorithm() -> None:
    assert asyncio.run(_accepted(serve.open_listener(Address("127.0.0.1", free_port())))) == 1


def test_port_in_use_error_suggests_next_port() -> None:
    address = Address("127.0.0.1", free_port())

    with serve.open_listener(address), pytest.raises(ConflictError, match="is in use") as refused:
        serve.open_listener(address)

    assert f"--port {address.port + 1}" in refused.value.hint


async def _accepted(listening: socket.socket) -> int:
    """Return whether Nagle's algorithm is off where the server has taken a connection."""
    found = asyncio.get_running_loop().create_future()

    def take(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        taken: socket.socket = writer.get_extra_info("socket")
        found.set_result(taken.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()

    async with await asyncio.start_server(take, sock=listening):
        _, writer = await asyncio.open_connection(*listening.getsockname())
        told: int = await found
        writer.close()
    return told
