"""The studio for programs that await answers. What it can do is told in `sync.py`."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any, Generic, ParamSpec, Self, TypeVar

import httpx2

from studio.client import endpoints, retries
from studio.client.discovery import found
from studio.client.errors import refusal
from studio.client.request import Call, Listed
from studio.client.schemas import Chore, Run

P = ParamSpec("P")
T = TypeVar("T")

LOOK_SECONDS = 0.5


class Wire:
    """Sends calls, and reads their answers."""

    def __init__(self, url: str | None, token: str | None) -> None:
        self.client = httpx2.AsyncClient(**retries.options(found(url, token)))

    async def send(self, call: Call[T]) -> T:
        tries = retries.Tries(call)
        while True:
            outcome = await self._ask(call)
            pause = tries.pause(outcome)
            if pause is None:
                return retries.answer(call, outcome, self.client.base_url)
            await asyncio.sleep(pause)

    async def all(self, listed: Listed[T]) -> AsyncIterator[T]:
        after: int | None = None
        while True:
            page = await self.send(listed.page(after))
            for one in page.data:
                yield one
            if not page.has_more:
                return
            after = page.next_after

    async def _ask(self, call: Call[Any]) -> retries.Outcome:
        with call.file.opened() if call.file else nullcontext() as files:
            try:
                return await self.client.send(retries.request(self.client, call, files))
            except httpx2.TransportError as error:
                return error


class Noun:
    def __init__(self, wire: Wire) -> None:
        self._wire = wire


class Does(Generic[P, T]):
    """A method that sends the call it is made of."""

    def __init__(self, call: Callable[P, Call[T]]) -> None:
        self._call = call
        self.__doc__ = call.__doc__

    def __get__(self, noun: Noun, _kind: type | None = None) -> Callable[P, Coroutine[Any, Any, T]]:
        async def send(*args: P.args, **kwargs: P.kwargs) -> T:
            return await noun._wire.send(self._call(*args, **kwargs))  # noqa: SLF001 -- its own

        return send


class Lists(Generic[P, T]):
    """A method that goes through a list, fetching further pages as they are come to."""

    def __init__(self, call: Callable[P, Listed[T]]) -> None:
        self._call = call
        self.__doc__ = call.__doc__

    def __get__(self, noun: Noun, _kind: type | None = None) -> Callable[P, AsyncIterator[T]]:
        def send(*args: P.args, **kwargs: P.kwargs) -> AsyncIterator[T]:
            return noun._wire.all(self._call(*args, **kwargs))  # noqa: SLF001 -- its own

        return send


class Runs(Noun):
    submit = Does(endpoints.submit_run)
    list = Lists(endpoints.runs)
    get = Does(endpoints.run)
    change = Does(endpoints.change_run)
    delete = Does(endpoints.delete_run)
    cancel = Does(endpoints.cancel_run)
    keep = Does(endpoints.keep_run)
    pause = Does(endpoints.pause_run)
    resume = Does(endpoints.resume_run)
    retry = Does(endpoints.retry_run)
    move = Does(endpoints.move_run)
    again = Does(endpoints.again)
    metrics = Does(endpoints.metrics)
    artifacts = Does(endpoints.artifacts)

    async def wait(self, run_id: int) -> Run:
        """Return a run once it has ended; `asyncio.timeout` says how long that may take."""
        while not (run := await self.get(run_id)).is_final:  # noqa: ASYNC110 -- another process is waited for
            await asyncio.sleep(LOOK_SECONDS)
        return run

    async def stream(self, run_id: int) -> AsyncIterator[httpx2.ServerSentEvent]:
        """Yield what a run tells until it has ended; after a cut, from where it was cut off.

        `event` is metrics, status, log, event or sample; `json()` what it says.
        """
        last, is_over = "", False
        while not is_over:
            with suppress(httpx2.TransportError):
                async for told in self._listen(run_id, last):
                    last = told.id or last
                    is_over = is_over or told.event == "end"
                    if told.event not in {"end", "hb"}:
                        yield told
            if not is_over:
                await self.get(run_id)  # It says so if nobody is there.

    async def download(self, run_id: int, name: str, to: Path) -> Path:
        """Write one of the run's files to a path, and return that."""
        async with self._wire.client.stream("GET", f"/runs/{run_id}/artifacts/{name}") as response:
            if response.is_error:
                await response.aread()
                raise refusal(response)
            with to.open("wb") as out:
                async for part in response.aiter_bytes():
                    out.write(part)
        return to

    async def _listen(self, run_id: int, last: str) -> AsyncIterator[httpx2.ServerSentEvent]:
        client = self._wire.client
        response = await client.send(retries.stream_request(client, run_id, last), stream=True)
        try:
            if response.is_error:
                await response.aread()
                raise refusal(response)
            async for told in httpx2.EventSource(response):
                yield told
        finally:
            await response.aclose()


class Experiments(Noun):
    create = Does(endpoints.create_experiment)
    list = Lists(endpoints.experiments)
    get = Does(endpoints.experiment)
    run = Does(endpoints.run_experiment)
    delete = Does(endpoints.delete_experiment)


class Chores(Noun):
    get = Does(endpoints.chore)

    async def wait(self, chore_id: int) -> Chore:
        """Return a chore once it has ended."""
        while not (chore := await self.get(chore_id)).is_final:  # noqa: ASYNC110 -- another process is waited for
            await asyncio.sleep(LOOK_SECONDS)
        return chore


class Datasets(Noun):
    add = Does(endpoints.add_dataset)
    bring = Does(endpoints.bring_dataset)
    list = Lists(endpoints.datasets)
    get = Does(endpoints.dataset)
    delete = Does(endpoints.delete_dataset)


class Models(Noun):
    add = Does(endpoints.add_model)
    download = Does(endpoints.download_model)
    list = Lists(endpoints.models)
    get = Does(endpoints.model)


class Sweeps(Noun):
    create = Does(endpoints.create_sweep)
    prospect = Does(endpoints.prospect)
    list = Lists(endpoints.sweeps)
    get = Does(endpoints.sweep)
    stop = Does(endpoints.stop_sweep)


class AsyncStudio(Noun):
    """A studio, here or elsewhere."""

    compare = Does(endpoints.compare)
    queue = Does(endpoints.queue)

    def __init__(self, url: str | None = None, token: str | None = None) -> None:
        """Without arguments, what STUDIO_URL and STUDIO_TOKEN say, or the one on this machine."""
        super().__init__(Wire(url, token))
        self.runs = Runs(self._wire)
        self.experiments = Experiments(self._wire)
        self.datasets = Datasets(self._wire)
        self.models = Models(self._wire)
        self.sweeps = Sweeps(self._wire)
        self.chores = Chores(self._wire)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._wire.client.aclose()
