"""Event streams: one watcher of the database wakes all open streams, and ends them at shutdown.

Each message carries an id, so a viewer whose connection broke (a reload, a restart of the server,
a hidden tab) resumes where it stopped: no message is lost or repeated.
"""

import asyncio
import signal
import socket
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Hashable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from types import FrameType
from typing import Any, TypeVar

from fastapi import Depends, Request
from sqlalchemy import Engine
from starlette.concurrency import run_in_threadpool

from studio.db.session import watch_commits
from studio.errors import UnavailableError
from studio.web.auth import identity
from studio.web.auth.identity import OptionalIdentity

POLL_SECONDS = 0.2
"""The least time between two looks for commits, however many there are; and how often to look where
nothing announces commits."""

LOOK_SECONDS = 5.0
"""How often to look for commits that nothing has announced; one pragma, microseconds."""

SLOW_SECONDS = 1.0
"""How often streams of costly reads are woken at most."""

HEARTBEAT_SECONDS = 15.0
"""A viewer that receives nothing for longer considers the connection dead."""

T = TypeVar("T")


class CommitFeed:
    """Wakes streams after commits and at shutdown; they share what they read."""

    def __init__(self) -> None:
        self._changed = asyncio.Condition()
        self._version = 0
        self._closing = False
        self._read: dict[Hashable, asyncio.Future[Any]] = {}

    @property
    def is_closing(self) -> bool:
        return self._closing

    @property
    def version(self) -> int:
        """The number of commits noticed so far."""
        return self._version

    async def read_shared(self, key: Hashable, read: Callable[[], T]) -> T:
        """Read in a thread, once for all callers with the same key between two commits."""
        if key not in self._read:
            self._read[key] = asyncio.ensure_future(run_in_threadpool(read))
        # A caller that is cancelled must not cancel the read that others await.
        result: T = await asyncio.shield(self._read[key])
        return result

    async def wait(self, seen: int, seconds: float = HEARTBEAT_SECONDS) -> int:
        """Return the version once it differs from `seen`, or unchanged after `seconds`."""
        try:
            async with asyncio.timeout(seconds), self._changed:
                await self._changed.wait_for(lambda: self._version != seen or self._closing)
        except TimeoutError:
            self._read.clear()  # Logs can grow without a commit.
        return self._version

    async def notify(self) -> None:
        async with self._changed:
            self._version += 1
            self._read.clear()
            self._changed.notify_all()

    async def close(self) -> None:
        async with self._changed:
            self._closing = True
            self._changed.notify_all()


class EventHub(CommitFeed):
    """Watches the database for all streams."""

    def __init__(self, engine: Engine, *, look_seconds: float = LOOK_SECONDS) -> None:
        super().__init__()
        self.slow = CommitFeed()
        """Wakes after commits, too, but for several within `SLOW_SECONDS` only once."""
        self._engine = engine
        self._look_seconds = look_seconds
        self._slow_at = float("-inf")
        self._slow_task: asyncio.Task[None] | None = None

    async def close(self) -> None:
        await super().close()
        await self.slow.close()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Watch the database while the web process lives."""
        loop = asyncio.get_running_loop()
        watch = asyncio.create_task(self._poll())
        with _on_shutdown(lambda: loop.call_soon_threadsafe(self._begin_close)):
            try:
                yield
            finally:
                await self.close()
                for task in filter(None, (watch, self._slow_task)):
                    task.cancel()
                    with suppress(asyncio.CancelledError):
                        await task

    async def _poll(self) -> None:
        with watch_commits(self._engine) as changes:
            while not self._closing:
                if changes.has_new_commit():
                    await self.notify()
                    if self._slow_task is None or self._slow_task.done():
                        self._slow_task = asyncio.create_task(self._notify_slow())
                await asyncio.sleep(POLL_SECONDS)
                if changes.bell is not None:
                    await _wait_readable(changes.bell, self._look_seconds)

    async def _notify_slow(self) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(max(0.0, self._slow_at + SLOW_SECONDS - loop.time()))
        self._slow_at = loop.time()
        await self.slow.notify()

    def _begin_close(self) -> None:
        self._ending = asyncio.ensure_future(self.close())


async def _wait_readable(bell: socket.socket, seconds: float) -> None:
    """Wait until there is something to read, at most `seconds`; reads nothing."""
    loop, is_readable = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(bell, is_readable.set)
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await is_readable.wait()
    finally:
        loop.remove_reader(bell)


@contextmanager
def _on_shutdown(act: Callable[[], object]) -> Iterator[None]:
    """Call `act` on SIGINT or SIGTERM, before uvicorn waits for open connections.

    Uvicorn waits for streams to end by themselves, and would wait forever.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def handle(received: int, frame: FrameType | None) -> None:
        act()
        handler = handlers[signal.Signals(received)]
        if callable(handler):
            handler(received, frame)

    for number in handlers:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number, before in handlers.items():
            signal.signal(number, before)


MAX_STREAMS, MAX_STREAMS_PER_VIEWER = 1000, 100
"""In total, and per account; without accounts, per client address."""


class StreamLimiter:
    """Counts open streams by viewer. Only used on the event loop."""

    def __init__(self, most: int = MAX_STREAMS, most_of_one: int = MAX_STREAMS_PER_VIEWER) -> None:
        self._most = most
        self._most_of_one = most_of_one
        self._open: Counter[str] = Counter()

    @contextmanager
    def hold(self, whose: str) -> Iterator[None]:
        """Reserve a slot for a stream while it is open.

        Raises:
            UnavailableError: Too many streams are open.

        """
        if self._open[whose] >= self._most_of_one or self._open.total() >= self._most:
            raise UnavailableError(
                "Too many live pages are open.", hint="Close some, or wait a moment."
            )
        self._open[whose] += 1
        try:
            yield
        finally:
            self._open[whose] -= 1
            self._open += Counter()  # Drops zero counts.


async def _hold_stream_slot(request: Request, visitor: OptionalIdentity) -> AsyncIterator[None]:
    limiter: StreamLimiter = request.app.state.viewers
    account = visitor.account_id if visitor else None
    viewer = f"account {account}" if account is not None else identity.client_address(request.scope)
    with limiter.hold(viewer):
        yield


StreamSlot = Depends(_hold_stream_slot)
"""The dependency of each event stream; the slot is released when the stream ends."""
