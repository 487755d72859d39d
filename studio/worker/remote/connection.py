"""Calls of a studio on another machine. Each is made once; who calls decides when to try again."""

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from http import HTTPStatus
from typing import Any, TypeVar

import httpx2
from pydantic import BaseModel, ValidationError

from studio.client import errors
from studio.client.errors import ApiError
from studio.client.transports import client_options, resolve_settings
from studio.errors import NotFoundError
from studio.protocols.remote_worker import (
    BUSY,
    FENCED,
    AttemptEnd,
    AttemptRef,
    ClaimAnswer,
    ClaimRequest,
    EndAnswer,
    FolderAnswer,
    FolderRequest,
    Heartbeat,
    HeartbeatAnswer,
    RunFiles,
    Stream,
    StreamAnswer,
    UploadAnswer,
)

M = TypeVar("M", bound=BaseModel)

_SHORT_TIMEOUT = httpx2.Timeout(15.0)
_HASHING_TIMEOUT = httpx2.Timeout(60.0, read=900.0)
"""The studio may have to read a large model first."""

_PASSING = frozenset({HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS})
NOT_A_STUDIO = "not_a_studio"
"""The code of an answer that comes from something else."""

_DENIED = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN})


class StudioAwayError(Exception):
    """The studio did not answer, or cannot do it now. The same call may succeed later."""


class FencedError(Exception):
    """The attempt is no longer this worker's: its process has to end."""


@dataclass(slots=True)
class Backoff:
    """Waits longer after each failure in a row, so that a studio that comes back is not flooded."""

    first_seconds: float = 0.2
    last_seconds: float = 10.0
    _failures: int = 0

    def reset(self) -> None:
        self._failures = 0

    def wait(self, stop: threading.Event) -> None:
        self._failures += 1
        seconds = min(self.first_seconds * 2 ** min(self._failures - 1, 10), self.last_seconds)
        stop.wait(seconds * random.uniform(0.5, 1))  # noqa: S311 -- no secret


@dataclass(slots=True)
class StudioConnection:
    """May be used by several threads at once."""

    worker: str
    client: httpx2.Client = field(repr=False)
    clock: Callable[[], datetime] = field(default_factory=lambda: partial(datetime.now, UTC))
    """This machine's clock, which may differ from the studio's."""

    @classmethod
    def open(cls, worker: str, url: str, token: str | None) -> "StudioConnection":
        return cls(worker, httpx2.Client(**client_options(resolve_settings(url, token))))

    def beat(self, beat: Heartbeat) -> HeartbeatAnswer:
        return self._post("/beat", HeartbeatAnswer, beat, timeout=_SHORT_TIMEOUT)

    def claim(self, request: ClaimRequest) -> ClaimAnswer:
        return self._post("/claim", ClaimAnswer, request)

    def leave(self) -> None:
        self._send("DELETE", "", timeout=_SHORT_TIMEOUT)

    def list_files(self, ref: AttemptRef) -> RunFiles:
        path = f"{_attempt_path(ref)}/files"
        return _parse(RunFiles, self._send("GET", path, timeout=_HASHING_TIMEOUT))

    @contextmanager
    def download(self, ref: AttemptRef, sha256: str, offset: int) -> Iterator[Iterator[bytes]]:
        """Open a file from an offset."""
        path = self._path(f"{_attempt_path(ref)}/files/{sha256}")
        # To compress weights takes the studio long, and makes them hardly smaller.
        headers = {"Accept-Encoding": "identity"}
        if offset:
            headers["Range"] = f"bytes={offset}-"
        with (
            _explain_transport(),
            self.client.stream("GET", path, headers=headers) as response,
        ):
            if response.is_error or (offset and response.status_code != HTTPStatus.PARTIAL_CONTENT):
                response.read()
                _raise_for(response)
                raise StudioAwayError("The studio sent another part of the file.")
            yield response.iter_bytes()

    def append(self, ref: AttemptRef, name: Stream, offset: int, data: bytes) -> StreamAnswer:
        query = {"offset": offset, "clock": self.clock().isoformat()}
        path = f"{_attempt_path(ref)}/streams/{name}"
        return _parse(StreamAnswer, self._send("POST", path, params=query, content=data))

    def upload(self, ref: AttemptRef, sha256: str, part: "FilePart") -> UploadAnswer:
        query = {"offset": part.offset, "size": part.size}
        path = f"{_attempt_path(ref)}/uploads/{sha256}"
        return _parse(UploadAnswer, self._send("POST", path, params=query, content=part.data))

    def place(self, ref: AttemptRef, request: FolderRequest) -> FolderAnswer:
        return self._post(f"{_attempt_path(ref)}/folders", FolderAnswer, request)

    def end(self, ref: AttemptRef, ended: AttemptEnd) -> EndAnswer:
        return self._post(f"{_attempt_path(ref)}/end", EndAnswer, ended)

    def _post(self, path: str, answer: type[M], body: BaseModel, **options: Any) -> M:  # noqa: ANN401 -- httpx2's own
        headers = {"Content-Type": "application/json"}
        content = body.model_dump_json()
        return _parse(answer, self._send("POST", path, content=content, headers=headers, **options))

    def _send(self, method: str, path: str, **options: Any) -> httpx2.Response:  # noqa: ANN401 -- httpx2's own
        with _explain_transport():
            response = self.client.request(method, self._path(path), **options)
        _raise_for(response)
        return response

    def _path(self, path: str) -> str:
        return f"/workers/{self.worker}{path}"


@dataclass(frozen=True, slots=True)
class FilePart:
    """The next bytes of a file of a known size."""

    offset: int
    size: int
    data: bytes


def is_denied(error: Exception) -> bool:
    """Whether the studio does not accept the token."""
    return isinstance(error, ApiError) and error.status in _DENIED


def _attempt_path(ref: AttemptRef) -> str:
    return f"/attempts/{ref.run_id}/{ref.attempt}"


@contextmanager
def _explain_transport() -> Iterator[None]:
    try:
        yield
    except (httpx2.TransportError, httpx2.DecodingError) as error:
        raise StudioAwayError(f"{type(error).__name__}: {error}") from error


def _raise_for(response: httpx2.Response) -> None:
    """Raise what an error means.

    Raises:
        ApiError: the studio refuses the call, and will again.
        FencedError: the attempt is no longer this worker's.
        StudioAwayError: the same call may succeed later.

    """
    if not response.is_error:
        return
    error = errors.api_error(response)
    if error.code in {FENCED, NotFoundError.code}:
        raise FencedError(error.message)  # The run may have been deleted.
    # A proxy answers for a studio that is away.
    is_foreign = error.code == NOT_A_STUDIO
    if (
        response.is_server_error
        or response.status_code in _PASSING
        or is_foreign
        or error.code == BUSY
    ):
        raise StudioAwayError(error.message) from error
    raise error


def _parse(kind: type[M], response: httpx2.Response) -> M:
    try:
        return kind.model_validate_json(response.content)
    except ValidationError as error:
        raise StudioAwayError("The answer is not that of a studio.") from error
