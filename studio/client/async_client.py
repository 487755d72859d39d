"""The async client, with the same methods as `sync_client.py`."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any, Generic, ParamSpec, Self, TypeVar

import httpx2

from studio.client import endpoints, retries
from studio.client.discovery import resolve_settings
from studio.client.errors import api_error
from studio.client.request import ApiRequest, PagedRequest
from studio.client.schemas import Run, Task

P = ParamSpec("P")
T = TypeVar("T")

POLL_SECONDS = 0.5


class AsyncTransport:
    """Sends requests and parses responses."""

    def __init__(self, url: str | None, token: str | None) -> None:
        self.client = httpx2.AsyncClient(**retries.client_options(resolve_settings(url, token)))

    async def send(self, call: ApiRequest[T]) -> T:
        schedule = retries.RetrySchedule(call)
        while True:
            outcome = await self._ask(call)
            delay = schedule.next_delay(outcome)
            if delay is None:
                return retries.parse_response(call, outcome, self.client.base_url)
            await asyncio.sleep(delay)

    async def iterate(self, request: PagedRequest[T]) -> AsyncIterator[T]:
        after: int | None = None
        while True:
            page = await self.send(request.page(after))
            for item in page.data:
                yield item
            if not page.has_more:
                return
            after = page.next_after

    async def _ask(self, call: ApiRequest[Any]) -> retries.Outcome:
        with call.file.open() if call.file else nullcontext() as files:
            try:
                return await self.client.send(retries.build_request(self.client, call, files))
            except httpx2.TransportError as error:
                return error


class AsyncResource:
    def __init__(self, wire: AsyncTransport) -> None:
        self._transport = wire


class AsyncMethod(Generic[P, T]):
    """A method that sends the request an endpoint function returns."""

    def __init__(self, call: Callable[P, ApiRequest[T]]) -> None:
        self._call = call
        self.__doc__ = call.__doc__

    def __get__(
        self, noun: AsyncResource, _kind: type | None = None
    ) -> Callable[P, Coroutine[Any, Any, T]]:
        async def send(*args: P.args, **kwargs: P.kwargs) -> T:
            return await noun._transport.send(self._call(*args, **kwargs))  # noqa: SLF001 -- its own

        return send


class AsyncListMethod(Generic[P, T]):
    """A method that iterates over a list and fetches further pages on demand."""

    def __init__(self, call: Callable[P, PagedRequest[T]]) -> None:
        self._call = call
        self.__doc__ = call.__doc__

    def __get__(
        self, noun: AsyncResource, _kind: type | None = None
    ) -> Callable[P, AsyncIterator[T]]:
        def send(*args: P.args, **kwargs: P.kwargs) -> AsyncIterator[T]:
            return noun._transport.iterate(self._call(*args, **kwargs))  # noqa: SLF001 -- its own

        return send


class Runs(AsyncResource):
    submit = AsyncMethod(endpoints.submit_run)
    list = AsyncListMethod(endpoints.runs)
    get = AsyncMethod(endpoints.run)
    change = AsyncMethod(endpoints.change_run)
    delete = AsyncMethod(endpoints.delete_run)
    cancel = AsyncMethod(endpoints.cancel_run)
    keep = AsyncMethod(endpoints.keep_run)
    pause = AsyncMethod(endpoints.pause_run)
    resume = AsyncMethod(endpoints.resume_run)
    retry = AsyncMethod(endpoints.retry_run)
    move = AsyncMethod(endpoints.move_run)
    again = AsyncMethod(endpoints.rerun)
    metrics = AsyncMethod(endpoints.metrics)
    artifacts = AsyncMethod(endpoints.artifacts)

    async def wait(self, run_id: int) -> Run:
        """Return a run once it has ended; use `asyncio.timeout` to limit the wait."""
        while not (run := await self.get(run_id)).is_final:  # noqa: ASYNC110 -- waits for another process
            await asyncio.sleep(POLL_SECONDS)
        return run

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
            retries.build_stream_request(client, run_id, last), stream=True
        )
        try:
            if response.is_error:
                await response.aread()
                raise api_error(response)
            async for event in httpx2.EventSource(response):
                yield event
        finally:
            await response.aclose()


class Experiments(AsyncResource):
    create = AsyncMethod(endpoints.create_experiment)
    list = AsyncListMethod(endpoints.experiments)
    get = AsyncMethod(endpoints.experiment)
    run = AsyncMethod(endpoints.run_experiment)
    delete = AsyncMethod(endpoints.delete_experiment)


class Tasks(AsyncResource):
    get = AsyncMethod(endpoints.task)

    async def wait(self, chore_id: int) -> Task:
        """Return a task once it has ended."""
        while not (task := await self.get(chore_id)).is_final:  # noqa: ASYNC110 -- waits for another process
            await asyncio.sleep(POLL_SECONDS)
        return task


class Datasets(AsyncResource):
    add = AsyncMethod(endpoints.add_dataset)
    bring = AsyncMethod(endpoints.import_dataset)
    list = AsyncListMethod(endpoints.datasets)
    get = AsyncMethod(endpoints.dataset)
    delete = AsyncMethod(endpoints.delete_dataset)


class Models(AsyncResource):
    add = AsyncMethod(endpoints.add_model)
    download = AsyncMethod(endpoints.download_model)
    list = AsyncListMethod(endpoints.models)
    get = AsyncMethod(endpoints.model)


class Sweeps(AsyncResource):
    create = AsyncMethod(endpoints.create_sweep)
    prospect = AsyncMethod(endpoints.preview_sweep)
    list = AsyncListMethod(endpoints.sweeps)
    get = AsyncMethod(endpoints.sweep)
    stop = AsyncMethod(endpoints.stop_sweep)


class AsyncStudio(AsyncResource):
    """A studio on this machine or another one."""

    compare = AsyncMethod(endpoints.compare)
    queue = AsyncMethod(endpoints.queue)

    def __init__(self, url: str | None = None, token: str | None = None) -> None:
        """Default to STUDIO_URL and STUDIO_TOKEN, then to the studio on this machine."""
        super().__init__(AsyncTransport(url, token))
        self.runs = Runs(self._transport)
        self.experiments = Experiments(self._transport)
        self.datasets = Datasets(self._transport)
        self.models = Models(self._transport)
        self.sweeps = Sweeps(self._transport)
        self.chores = Tasks(self._transport)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._transport.client.aclose()
