"""What the tests of attacks share: a studio, and requests that no honest client would send."""

import asyncio
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI
from fastapi.testclient import TestClient
from sqlalchemy import Engine

from studio.settings import Settings

Headers = list[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Target:
    app: FastAPI
    engine: Engine
    settings: Settings
    client: TestClient


@dataclass(frozen=True, slots=True)
class RawResponse:
    status: int
    headers: dict[str, str]
    body: bytes


def scope(path: str, *, method: str = "GET", headers: Headers | None = None) -> dict[str, Any]:
    """Return a request as a server hands it on; clients would tidy up the path."""
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},  # who leaves is heard of
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode("utf-8", "surrogateescape"),
        "query_string": b"",
        "root_path": "",
        "headers": [(b"host", b"testserver")] if headers is None else headers,
        "client": ("127.0.0.1", 1),
        "server": ("testserver", 80),
    }


def send_raw(
    place: Target, path: str, *, method: str = "GET", headers: Headers | None = None
) -> RawResponse:
    """Ask for a path as it stands: no dot, no percent sign and no slash of it is tidied away."""
    return asyncio.run(_ask(place, scope(path, method=method, headers=headers)))


async def _ask(place: Target, asked: dict[str, Any]) -> RawResponse:
    sent: list[dict[str, Any]] = []

    waiting = [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive() -> dict[str, Any]:
        return waiting.pop() if waiting else await asyncio.Future()

    async def send(message: Any) -> None:  # noqa: ANN401 -- as ASGI has it
        sent.append(message)

    await place.app(asked, receive, send)
    begun = sent[0]
    headers = {name.decode().lower(): value.decode("latin-1") for name, value in begun["headers"]}
    body = b"".join(one.get("body", b"") for one in sent[1:])
    return RawResponse(begun["status"], headers, body)
