"""The answers that a request of the OpenAI-compatible API asks for, read at the same time."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from studio.errors import StudioError
from studio.protocols.inference_service import GenerationChunk, GenerationRequest
from studio.services.models import service_clients
from studio.settings import Settings

_Received = tuple[int, GenerationChunk] | asyncio.Task[None]
"""A piece of an answer, or the task that has read one to its end or failed."""


@dataclass(slots=True)
class Answers:
    """Streams of answers. Closing them early stops the generation."""

    settings: Settings
    requests: Sequence[GenerationRequest]
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)
    _received: asyncio.Queue[_Received] = field(default_factory=asyncio.Queue)
    _first: _Received | None = None

    async def start(self) -> None:
        """Return when the first answer starts.

        Raises:
            StudioError: A request or the model is invalid, or cannot be loaded.

        """
        for index in range(len(self.requests)):
            task = asyncio.ensure_future(self._read(index))
            task.add_done_callback(self._received.put_nowait)
            self._tasks.append(task)
        try:
            self._first = await self._received.get()
            if isinstance(self._first, asyncio.Task):
                self._first.result()
        except BaseException:
            await self.close()
            raise

    async def chunks(self) -> AsyncIterator[tuple[int, GenerationChunk]]:
        """Yield pieces of each answer with its index, until all have ended.

        Raises:
            StudioError: One of them broke off.

        """
        running = len(self.requests)
        while running:
            received = self._first or await self._received.get()
            self._first = None
            if isinstance(received, asyncio.Task):
                received.result()
                running -= 1
            else:
                yield received

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with suppress(asyncio.CancelledError, StudioError):
                await task

    async def _read(self, index: int) -> None:
        stream = await service_clients.open_stream(self.settings, self.requests[index])
        try:
            chunk = GenerationChunk(started=True)
            self._received.put_nowait((index, chunk))
            while chunk.end is None:
                chunk = await stream.read()
                self._received.put_nowait((index, chunk))
        finally:
            await stream.close()
