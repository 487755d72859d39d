"""An endpoint that answers a request: it stays in use until the answer ends or its client goes."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from fastapi import Request
from fastapi.responses import StreamingResponse
from sqlalchemy import Engine
from sqlmodel import Session
from starlette.concurrency import run_in_threadpool
from starlette.types import Receive, Scope, Send

from studio.db.endpoints import Endpoint
from studio.db.session import read_session, unit_of_work
from studio.engines import ENGINES
from studio.errors import StudioError
from studio.services.endpoints import endpoints, usage

T = TypeVar("T")

_ANSWERING: Counter[tuple[Engine, int]] = Counter()
"""How many answers of each endpoint this process is passing on."""

_ENDING: set[asyncio.Task[None]] = set()
"""What notes the end of answers; a task that nothing refers to may vanish."""


@dataclass(slots=True)
class EndpointUse:
    """One answer of an endpoint."""

    engine: Engine
    endpoint: Endpoint
    _signs: asyncio.Task[None]
    is_closed: bool = False

    @property
    def id(self) -> int:
        return self.endpoint.id or 0

    @property
    def name(self) -> str:
        return self.endpoint.name

    @property
    def is_external(self) -> bool:
        """Whether a program of its own answers."""
        return ENGINES[self.endpoint.engine].is_external

    def close(self) -> None:
        """Note the end of the answer, without waiting for it: the client may have gone."""
        if self.is_closed:
            return
        self.is_closed = True
        self._signs.cancel()
        key = (self.engine, self.id)
        _ANSWERING[key] -= 1
        task = asyncio.ensure_future(_note_end(self.engine, self.id, is_last=not _ANSWERING[key]))
        _ENDING.add(task)
        task.add_done_callback(_ENDING.discard)


class UsingResponse(StreamingResponse):
    """A stream of events that uses an endpoint until it ends, even if it never starts."""

    def __init__(self, events: AsyncIterator[str | bytes], use: EndpointUse | None) -> None:
        super().__init__(events, media_type="text/event-stream")
        self._use = use

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            close(self._use)


def close(use: EndpointUse | None) -> None:
    if use is not None:
        use.close()


async def begin(request: Request, name: str) -> EndpointUse | None:
    """Return the endpoint with a name, which is in use from now on; None if there is none.

    Raises:
        ConflictError: It is stopped.
        UnavailableError: It failed too often.

    """
    state = request.app.state

    def find() -> bool:
        with read_session(state.engine) as db:
            return endpoints.find_by_name(db, name) is not None

    async with state.seats.readers:
        if not await run_in_threadpool(find):
            return None
    endpoint = await write(request, lambda db: usage.begin(db, name))
    if endpoint is None:
        return None
    _ANSWERING[(state.engine, endpoint.id or 0)] += 1
    signs = asyncio.ensure_future(_give_signs(state.engine, endpoint.id or 0))
    return EndpointUse(state.engine, endpoint, signs)


async def read(request: Request, endpoint_id: int) -> Endpoint | None:
    """Return an endpoint as it is now."""
    state = request.app.state

    def find() -> Endpoint | None:
        with read_session(state.engine) as db:
            return db.get(Endpoint, endpoint_id)

    async with state.seats.readers:
        return await run_in_threadpool(find)


async def write(request: Request, do: Callable[[Session], T]) -> T:
    """Do something in a transaction of its own, in a thread."""
    state = request.app.state

    def work() -> T:
        with unit_of_work(state.engine) as db:
            return do(db)

    async with state.seats.writers:
        return await run_in_threadpool(work)


async def _give_signs(engine: Engine, endpoint_id: int) -> None:
    """Note from time to time that an answer is still being written."""
    while True:
        await asyncio.sleep(usage.EXTEND_SECONDS)
        with suppress(StudioError):
            await run_in_threadpool(_extend, engine, endpoint_id)


def _extend(engine: Engine, endpoint_id: int) -> None:
    with unit_of_work(engine) as db:
        usage.extend(db, endpoint_id)


async def _note_end(engine: Engine, endpoint_id: int, *, is_last: bool) -> None:
    def end() -> None:
        with unit_of_work(engine) as db:
            usage.end(db, endpoint_id, is_last=is_last)

    with suppress(StudioError):
        await run_in_threadpool(end)
