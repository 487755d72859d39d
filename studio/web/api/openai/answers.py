"""The answers that a request of the OpenAI-compatible API asks for, read at the same time."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from studio.protocols.inference_service import GenerationChunk, GenerationRequest
from studio.services.models import service_clients
from studio.settings import Settings

_WAITING_CHUNKS = 64
"""How many pieces may wait for a slow client."""


@dataclass(slots=True)
class Answers:
    """Streams of answers. Closing them early stops the generation."""

    settings: Settings
    requests: Sequence[GenerationRequest]
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)
    _received: asyncio.Queue[tuple[int, GenerationChunk | Exception]] = field(
        default_factory=lambda: asyncio.Queue(_WAITING_CHUNKS)
    )
    _next: tuple[int, GenerationChunk | Exception] | None = None

    async def start(self) -> None:
        """Return when the first answer starts.

        Raises:
            StudioError: A request or the model is invalid, or cannot be loaded.

        """
        self._tasks = [
            asyncio.ensure_future(self._read(index)) for index in range(len(self.requests))
        ]
        try:
            self._next = await self._received.get()
        except asyncio.CancelledError:
            await self.close()
            raise
        if isinstance(self._next[1], Exception):
            await self.close()
            raise self._next[1]

    async def chunks(self) -> AsyncIterator[tuple[int, GenerationChunk]]:
        """Yield pieces of each answer with its index, until all have ended.

        Raises:
            StudioError: One of them broke off.

        """
        running = len(self.requests)
        while running:
            index, chunk = self._next or await self._received.get()
            self._next = None
            if isinstance(chunk, Exception):
                raise chunk
            running -= chunk.end is not None
            yield index, chunk

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with suppress(asyncio.CancelledError):
                await task

    async def _read(self, index: int) -> None:
        try:
            stream = await service_clients.open_stream(self.settings, self.requests[index])
            try:
                chunk = GenerationChunk(started=True)
                await self._received.put((index, chunk))
                while chunk.end is None:
                    chunk = await stream.read()
                    await self._received.put((index, chunk))
            finally:
                await stream.close()
        except Exception as error:  # noqa: BLE001 -- whoever reads the answers raises it
            await self._received.put((index, error))
