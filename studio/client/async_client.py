"""The async client, with the same methods as `sync_client.py`."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

import httpx2

from studio.client import notebook, transports
from studio.client.errors import api_error
from studio.client.resources import POLL_SECONDS, RunMethods, StudioMethods, TaskMethods
from studio.client.schemas import Run, Task
from studio.client.transports import AsyncTransport


class Runs(RunMethods[AsyncTransport]):
    async def wait(self, run_id: int) -> Run:
        """Return a run once it has ended; use `asyncio.timeout` to limit the wait."""
        while not (run := await self.get(run_id)).is_final:  # noqa: ASYNC110 -- waits for another process
            await asyncio.sleep(POLL_SECONDS)
        return run

    async def watch(
        self, run_id: int, keys: Sequence[str] = ("loss", "eval_loss"), *, seconds: float = 1.0
    ) -> Run:
        """Show a run with its curves until it ends, and return it.

        In a notebook one output follows the run; elsewhere each change is a line. It asks the
        studio every so many seconds.
        """
        show = notebook.find_display()
        while True:
            run = await self.get(run_id)
            curves = await self.metrics(run_id, keys)
            show(run._repr_html_() + curves._repr_html_(), run.line)
            if run.is_final:
                return run
            await asyncio.sleep(seconds)

    async def stream(self, run_id: int) -> AsyncIterator[httpx2.ServerSentEvent]:
        """Yield a run's events until it ends; resume after a lost connection.

        `event` is metrics, status, log, event or sample; `json()` is its content.
        """
        last, is_over = "", False
        while not is_over:
            with suppress(httpx2.TransportError):
                async for event in self._listen(run_id, last):
                    last = event.id or last
                    is_over = is_over or event.event == "end"
                    if event.event not in {"end", "hb"}:
                        yield event
            if not is_over:
                await self.get(run_id)  # raises if the studio is unreachable

    async def download(self, run_id: int, name: str, to: Path) -> Path:
        """Download one of the run's files to a path, and return the path."""
        async with self._transport.client.stream(
            "GET", f"/runs/{run_id}/artifacts/{name}"
        ) as response:
            if response.is_error:
                await response.aread()
                raise api_error(response)
            with to.open("wb") as out:
                async for part in response.aiter_bytes():
                    out.write(part)
        return to

    async def _listen(self, run_id: int, last: str) -> AsyncIterator[httpx2.ServerSentEvent]:
        client = self._transport.client
        response = await client.send(
            transports.build_stream_request(client, run_id, last), stream=True
        )
        try:
            if response.is_error:
                await response.aread()
                raise api_error(response)
            async for event in httpx2.EventSource(response):
                yield event
        finally:
            await response.aclose()


class Tasks(TaskMethods[AsyncTransport]):
    async def wait(self, chore_id: int) -> Task:
        """Return a task once it has ended."""
        while not (task := await self.get(chore_id)).is_final:  # noqa: ASYNC110 -- waits for another process
            await asyncio.sleep(POLL_SECONDS)
        return task


class AsyncStudio(StudioMethods[AsyncTransport]):
    """A studio on this machine or another one."""

    def __init__(self, url: str | None = None, token: str | None = None) -> None:
        """Default to STUDIO_URL and STUDIO_TOKEN, then to the studio on this machine."""
        super().__init__(AsyncTransport(url, token))
        self.runs = Runs(self._transport)
        self.chores = Tasks(self._transport)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._transport.client.aclose()
