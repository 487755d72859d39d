"""The synchronous client."""

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

import httpx2

from studio.client import notebook, transports
from studio.client.errors import api_error
from studio.client.resources import POLL_SECONDS, RunMethods, StudioMethods, TaskMethods
from studio.client.schemas import Run, Task
from studio.client.transports import Transport


class Runs(RunMethods[Transport]):
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

    def watch(
        self, run_id: int, keys: Sequence[str] = ("loss", "eval_loss"), *, seconds: float = 1.0
    ) -> Run:
        """Show a run with its curves until it ends, and return it.

        In a notebook one output follows the run; elsewhere each change is a line. It asks the
        studio every so many seconds.
        """
        show = notebook.find_display()
        while True:
            run = self.get(run_id)
            curves = self.metrics(run_id, keys)
            show(run._repr_html_() + curves._repr_html_(), run.line)
            if run.is_final:
                return run
            time.sleep(seconds)

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
        response = client.send(transports.build_stream_request(client, run_id, last), stream=True)
        try:
            if response.is_error:
                response.read()
                raise api_error(response)
            yield from httpx2.EventSource(response)
        finally:
            response.close()


class Tasks(TaskMethods[Transport]):
    def wait(self, chore_id: int) -> Task:
        """Return a task once it has ended."""
        while not (task := self.get(chore_id)).is_final:
            time.sleep(POLL_SECONDS)
        return task


class Studio(StudioMethods[Transport]):
    """A studio on this machine or another one."""

    def __init__(self, url: str | None = None, token: str | None = None) -> None:
        """Default to STUDIO_URL and STUDIO_TOKEN, then to the studio on this machine."""
        super().__init__(Transport(url, token))
        self.runs = Runs(self._transport)
        self.chores = Tasks(self._transport)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._transport.client.close()
