"""Live streams and connections that somebody keeps open, against a real server where it matters."""

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import uvicorn
from hypothesis import given, settings
from hypothesis import strategies as st

from studio.errors import UnavailableError
from studio.services.runs import artifacts
from studio.web.app import create_app
from studio.web.http.event_hub import StreamLimiter
from tests.security.raw_requests import RawResponse, Target, scope, send_raw

SECONDS = 20


@pytest.fixture(scope="module")
def port(place: Target) -> Iterator[int]:
    """Serve the studio by a real server, and return its port."""
    listening = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(place.app, log_config=None, access_log=False, proxy_headers=False)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    yield int(listening.getsockname()[1])
    server.should_exit = True
    thread.join()


def said(port: int, sent: bytes) -> bytes:
    """Send bytes as they stand, and return the first line of what is answered."""
    with socket.create_connection(("127.0.0.1", port), timeout=SECONDS) as line:
        with contextlib.suppress(ConnectionError):
            line.sendall(sent)
        return line.makefile("rb").readline()


def request(target: str = "/api/v1/health", *headers: str) -> bytes:
    return "\r\n".join([f"GET {target} HTTP/1.1", *headers, "", ""]).encode("latin-1")


def test_open_streams_per_user_are_limited() -> None:
    viewers = StreamLimiter(most=10, most_of_one=2)

    with (
        viewers.hold("ann"),
        viewers.hold("ann"),
        viewers.hold("bob"),
        pytest.raises(UnavailableError),
        viewers.hold("ann"),
    ):
        pass
    with viewers.hold("ann"), viewers.hold("ann"):
        pass


def test_total_open_streams_are_limited() -> None:
    viewers = StreamLimiter(most=3, most_of_one=2)

    with (
        viewers.hold("ann"),
        viewers.hold("bob"),
        viewers.hold("cid"),
        pytest.raises(UnavailableError),
        viewers.hold("dan"),
    ):
        pass
    with viewers.hold("dan"):
        pass


STREAMS = ("/api/v1/stream", "/api/v1/runs/1/stream", "/api/v1/compare/stream")


def test_excess_stream_gets_503_with_retry_after(place: Target) -> None:
    refused, after = asyncio.run(_two_streams(place))

    assert [(one.status, int(one.headers["retry-after"]) > 0) for one in refused] == [
        (503, True)
    ] * len(STREAMS)
    assert after == 200


async def _two_streams(place: Target) -> tuple[list[RawResponse], int]:
    """Open a stream, ask for each besides, leave, and ask again. Return what is answered."""
    app = create_app(place.engine, place.settings)
    app.state.viewers = StreamLimiter(most=1)
    there = replace(place, app=app)
    async with app.router.lifespan_context(app):
        first = await _opened(there, STREAMS[0])
        refused = [await asyncio.to_thread(send_raw, there, path) for path in STREAMS]
        await _left(first)
        second = await _opened(there, STREAMS[0])
        await _left(second)
    return refused, second[1]


async def _opened(place: Target, path: str) -> tuple[asyncio.Task[None], int, asyncio.Event]:
    """Open a stream; it stays until the event is set."""
    sent: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    asked, leave = [{"type": "http.request", "body": b"", "more_body": False}], asyncio.Event()

    async def receive() -> dict[str, Any]:
        if asked:
            return asked.pop()
        await leave.wait()
        return {"type": "http.disconnect"}

    task = asyncio.create_task(place.app(scope(path), receive, sent.put))  # type: ignore[arg-type] # as ASGI has it
    begun = await sent.get()
    return task, begun["status"], leave


async def _left(stream: tuple[asyncio.Task[None], int, asyncio.Event]) -> None:
    task, _status, leave = stream
    leave.set()
    await task


def test_incomplete_requests_do_not_block_other_clients(port: int) -> None:
    with contextlib.ExitStack() as open_ones:
        for _ in range(200):
            line = open_ones.enter_context(socket.create_connection(("127.0.0.1", port)))
            line.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ")

        assert said(port, request("/", "Host: 127.0.0.1")).split()[1] == b"200"


def test_oversized_request_header_is_rejected(port: int) -> None:
    sent = request("/api/v1/health", "Host: 127.0.0.1", "X-Long: " + "x" * 100_000)

    assert said(port, sent).split()[1:2] in ([b"400"], [b"431"])


@pytest.mark.parametrize(
    ("target", "host", "status"),
    [
        ("http://evil.example/api/v1/health", "evil.example", 421),
        ("http://evil.example/api/v1/health", "127.0.0.1", 404),
        ("http://127.0.0.1/api/v1/health", "evil.example", 421),
        ("/api/v1/health", "127.0.0.1/allowed?", 421),
    ],
)
def test_absolute_request_target_does_not_bypass_host_check(
    port: int, target: str, host: str, status: int
) -> None:
    assert int(said(port, request(target, f"Host: {host}")).split()[1]) in {status, 400}


@pytest.mark.parametrize("hosts", [[], ["127.0.0.1", "127.0.0.1"], ["127.0.0.1", "evil.example"]])
def test_missing_or_duplicate_host_header_is_rejected(port: int, hosts: list[str]) -> None:
    sent = request("/api/v1/health", *(f"Host: {host}" for host in hosts))

    assert said(port, sent).split()[1] in {b"400", b"421"}


LINES = st.builds(
    "{}{}{}".format,
    st.text(max_size=20),
    st.sampled_from(
        [
            "\x1b[31mred",
            "\x1b]0;title\x07",
            "a\rb",
            "</pre><script>",
            "\n\nevent: x\ndata: {}",
            "\x9b5m",
        ]
    ),
    st.text(max_size=20),
)


@settings(max_examples=50, deadline=None)
@given(printed=LINES)
def test_run_log_output_contains_no_control_characters(place: Target, printed: str) -> None:
    log = place.settings.runs / "1" / "log.txt"
    log.write_bytes(printed.encode("utf-8", "replace") + b"\n")
    shown = artifacts.read_log(log, None, 500).lines

    assert [
        sign for line in shown for sign in line if not (sign.isprintable() or sign == "\t")
    ] == []
    assert "\n" not in json.dumps({"lines": shown})


def test_log_text_cannot_inject_stream_events(place: Target) -> None:
    log = place.settings.runs / "1" / "log.txt"
    log.write_bytes(b"one\r\n\r\nevent: evil\r\ndata: {}\r\nid: 9\n")
    with place.client as client:
        told = client.get("/api/v1/runs/1/stream").text

    kinds = {line.partition(":")[0] for line in told.splitlines() if line}
    named = {line for line in told.splitlines() if line.startswith("event: ")}
    assert kinds <= {"event", "data", "id", "retry"}
    assert "event: evil" not in named
