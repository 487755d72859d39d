"""The synchronous client."""

import time
from collections.abc import Callable, Iterator
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


class Transport:
    """Sends requests and parses responses."""

    def __init__(self, url: str | None, token: str | None) -> None:
        self.client = httpx2.Client(**retries.client_options(resolve_settings(url, token)))

    def send(self, call: ApiRequest[T]) -> T:
        schedule = retries.RetrySchedule(call)
        while True:
            outcome = self._ask(call)
            delay = schedule.next_delay(outcome)
            if delay is None:
                return retries.parse_response(call, outcome, self.client.base_url)
            time.sleep(delay)

    def iterate(self, request: PagedRequest[T]) -> Iterator[T]:
        after: int | None = None
        while True:
            page = self.send(request.page(after))
            yield from page.data
            if not page.has_more:
                return
            after = page.next_after

    def _ask(self, call: ApiRequest[Any]) -> retries.Outcome:
        with call.file.open() if call.file else nullcontext() as files:
            try:
                return self.client.send(retries.build_request(self.client, call, files))
            except httpx2.TransportError as error:
                return error


class Resource:
    def __init__(self, wire: Transport) -> None:
        self._transport = wire


class Method(Generic[P, T]):
    """A method that sends the request an endpoint function returns."""

    def __init__(self, call: Callable[P, ApiRequest[T]]) -> None:
        self._call = call
        self.__doc__ = call.__doc__

    def __get__(self, noun: Resource, _kind: type | None = None) -> Callable[P, T]:
        def send(*args: P.args, **kwargs: P.kwargs) -> T:
            return noun._transport.send(self._call(*args, **kwargs))  # noqa: SLF001 -- its own

        return send


class ListMethod(Generic[P, T]):
    """A method that iterates over a list and fetches further pages on demand."""

    def __init__(self, call: Callable[P, PagedRequest[T]]) -> None:
        self._call = call
        self.__doc__ = call.__doc__

    def __get__(self, noun: Resource, _kind: type | None = None) -> Callable[P, Iterator[T]]:
        def send(*args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
            return noun._transport.iterate(self._call(*args, **kwargs))  # noqa: SLF001 -- its own

        return send


class Runs(Resource):
    submit = Method(endpoints.submit_run)
    list = ListMethod(endpoints.runs)
    get = Method(endpoints.run)
    change = Method(endpoints.change_run)
    delete = Method(endpoints.delete_run)
    cancel = Method(endpoints.cancel_run)
    keep = Method(endpoints.keep_run)
    pause = Method(endpoints.pause_run)
    resume = Method(endpoints.resume_run)
    retry = Method(endpoints.retry_run)
    move = Method(endpoints.move_run)
    again = Method(endpoints.rerun)
    metrics = Method(endpoints.metrics)
    artifacts = Method(endpoints.artifacts)

    def wait(self, run_id: int, *, timeout: float | None = None) -> Run:
        """Return a run once it has ended.

        Raises:
            TimeoutError: the run has not ended after `timeout` seconds.

        """
        end = None if timeout is None else time.monotonic() + timeout
        while not (run := self.get(run_id)).is_final:
            if end is not None and time.monotonic() >= end:
                message = f"Run {run_id} is still {run.status}."
                raise TimeoutError(message)
            time.sleep(POLL_SECONDS)
        return run

    def stream(self, run_id: int) -> Iterator[httpx2.ServerSentEvent]:
        """Yield a run's events until it ends; resume after a lost connection.

        `event` is metrics, status, log, event or sample; `json()` is its content.
        """
        last, is_over = "", False
        while not is_over:
            with suppress(httpx2.TransportError):
                for event in self._listen(run_id, last):
                    last = event.id or last
                    is_over = is_over or event.event == "end"
                    if event.event not in {"end", "hb"}:
                        yield event
            if not is_over:
                self.get(run_id)  # raises if the studio is unreachable

    def download(self, run_id: int, name: str, to: Path) -> Path:
        """Download one of the run's files to a path, and return the path."""
        with self._transport.client.stream("GET", f"/runs/{run_id}/artifacts/{name}") as response:
            if response.is_error:
                response.read()
                raise api_error(response)
            with to.open("wb") as out:
                for part in response.iter_bytes():
                    out.write(part)
        return to

    def _listen(self, run_id: int, last: str) -> Iterator[httpx2.ServerSentEvent]:
        client = self._transport.client
        response = client.send(retries.build_stream_request(client, run_id, last), stream=True)
        try:
            if response.is_error:
                response.read()
                raise api_error(response)
            yield from httpx2.EventSource(response)
        finally:
            response.close()


class Experiments(Resource):
    create = Method(endpoints.create_experiment)
    list = ListMethod(endpoints.experiments)
    get = Method(endpoints.experiment)
    run = Method(endpoints.run_experiment)
    delete = Method(endpoints.delete_experiment)


class Tasks(Resource):
    get = Method(endpoints.task)

    def wait(self, chore_id: int) -> Task:
        """Return a task once it has ended."""
        while not (task := self.get(chore_id)).is_final:
            time.sleep(POLL_SECONDS)
        return task


class Datasets(Resource):
    add = Method(endpoints.add_dataset)
    bring = Method(endpoints.import_dataset)
    list = ListMethod(endpoints.datasets)
    get = Method(endpoints.dataset)
    delete = Method(endpoints.delete_dataset)


class Models(Resource):
    add = Method(endpoints.add_model)
    download = Method(endpoints.download_model)
    list = ListMethod(endpoints.models)
    get = Method(endpoints.model)


class Sweeps(Resource):
    create = Method(endpoints.create_sweep)
    prospect = Method(endpoints.preview_sweep)
    list = ListMethod(endpoints.sweeps)
    get = Method(endpoints.sweep)
    stop = Method(endpoints.stop_sweep)


class Studio(Resource):
    """A studio on this machine or another one."""

    compare = Method(endpoints.compare)
    queue = Method(endpoints.queue)

    def __init__(self, url: str | None = None, token: str | None = None) -> None:
        """Default to STUDIO_URL and STUDIO_TOKEN, then to the studio on this machine."""
        super().__init__(Transport(url, token))
        self.runs = Runs(self._transport)
        self.experiments = Experiments(self._transport)
        self.datasets = Datasets(self._transport)
        self.models = Models(self._transport)
        self.sweeps = Sweeps(self._transport)
        self.chores = Tasks(self._transport)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._transport.client.close()
