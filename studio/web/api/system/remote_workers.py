"""REST routes for workers on other machines: they claim runs, get files and send what is trained.

Only `studio worker --studio URL` has to call them. See `studio.protocols.remote_worker`.
"""

import time
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Request
from fastapi.responses import FileResponse, Response
from pydantic import AwareDatetime

from studio.db.session import unit_of_work
from studio.protocols import remote_worker as wire
from studio.protocols.remote_worker import (
    AttemptEnd,
    ClaimAnswer,
    ClaimRequest,
    EndAnswer,
    FolderAnswer,
    FolderRequest,
    Heartbeat,
    HeartbeatAnswer,
    RunFiles,
    StreamAnswer,
    UploadAnswer,
)
from studio.services.remote import folders, remote_attempts
from studio.services.remote.remote_attempts import StreamPart
from studio.services.remote.run_files import InputIndex
from studio.services.runs.attempts import REMOTE_LEASE
from studio.web.api import conventions as api
from studio.web.http.deps import DB, Config, ReadDB

router = APIRouter(
    route_class=api.ApiRoute, prefix="/api/v1/workers/{worker}", tags=["workers elsewhere"]
)

_STARTED_AT = time.monotonic()
_ATTEMPT = "/attempts/{run_id}/{attempt}"
_BINARY_SCHEMA = {"schema": {"type": "string", "format": "binary"}}
_BINARY_BODY: dict[str, Any] = {
    "requestBody": {"required": True, "content": {"application/octet-stream": _BINARY_SCHEMA}}
}
_BINARY_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/octet-stream": _BINARY_SCHEMA}},
    206: {
        "description": "The part that `Range` asks for.",
        "content": {"application/octet-stream": _BINARY_SCHEMA},
    },
    416: {"description": "The file has no such part."},
}

Worker = Annotated[str, Path(pattern=wire.NAME_PATTERN)]
AttemptId = Annotated[int, Path(ge=1, lt=2**31)]
Hash = Annotated[str, Path(pattern=r"^[0-9a-f]{64}$")]
Offset = Annotated[int, Query(ge=0, lt=2**50)]
Size = Annotated[int, Query(ge=1, lt=2**50)]


async def _read_body(request: Request) -> bytes:
    return await request.body()


RawBody = Annotated[bytes, Depends(_read_body)]


class AttemptPath:
    """The worker, the run and the attempt that a call is about."""

    def __init__(self, worker: Worker, run_id: api.Id, attempt: AttemptId) -> None:
        self.owner = (worker, run_id, attempt)


class StreamPartQuery:
    """The next bytes of a stream."""

    def __init__(self, offset: Offset, clock: AwareDatetime, data: RawBody) -> None:
        self.offset, self.clock, self.data = offset, clock, data


class FilePartQuery:
    """The next bytes of a file of a known size."""

    def __init__(self, offset: Offset, size: Size, data: RawBody) -> None:
        self.offset, self.size, self.data = offset, size, data


NextPart = Annotated[StreamPartQuery, Depends(StreamPartQuery)]
FilePart = Annotated[FilePartQuery, Depends(FilePartQuery)]
Attempt = Annotated[AttemptPath, Depends(AttemptPath)]


@router.post("/beat")
def beat(worker: Worker, body: Heartbeat, db: DB) -> HeartbeatAnswer:
    """Say that the worker is alive, and what it trains."""
    return remote_attempts.heartbeat(db, worker, body)


@router.post("/claim")
def claim(
    worker: Worker, body: ClaimRequest, db: ReadDB, request: Request, config: Config
) -> ClaimAnswer:
    """Claim the next run in the queue."""
    remote_attempts.check_version(body.version)
    if not remote_attempts.is_work_waiting(db, worker, body):
        return ClaimAnswer(assignment=None)
    with unit_of_work(request.app.state.engine) as writing:
        # Workers that a studio that was away has not heard yet get the time to call.
        if time.monotonic() - _STARTED_AT > REMOTE_LEASE.total_seconds():
            remote_attempts.close_silent(writing, worker)
        assignment = remote_attempts.claim(writing, config, worker, body)
    return ClaimAnswer(assignment=assignment)


@router.delete("", status_code=204)
def leave(worker: Worker, db: DB) -> None:
    """Remove a worker that has stopped. What it still trains keeps its lease."""
    remote_attempts.deregister(db, worker)


@router.get(_ATTEMPT + "/files")
def list_files(attempt: Attempt, db: DB, request: Request, config: Config) -> RunFiles:
    """List what the run needs: its job, and its files by hash."""
    run = remote_attempts.require_owned(db, *attempt.owner)
    return _index(request).describe(run, remote_attempts.run_folder(config, run))


@router.get(_ATTEMPT + "/files/{sha256}", response_class=FileResponse, responses=_BINARY_RESPONSES)
def download(attempt: Attempt, sha256: Hash, db: DB, request: Request, config: Config) -> Response:
    """Download one of these files, or a part of it by `Range`."""
    run = remote_attempts.require_owned(db, *attempt.owner)
    path = _index(request).find(run, remote_attempts.run_folder(config, run), sha256)
    return FileResponse(path, media_type="application/octet-stream")


@router.post(_ATTEMPT + "/streams/{name}", openapi_extra=_BINARY_BODY)
def append(
    attempt: Attempt, name: wire.Stream, part: NextPart, db: DB, config: Config
) -> StreamAnswer:
    """Append the next bytes of the run's events or log. Other bytes change nothing.

    `clock` is the time on the worker's machine.
    """
    run = remote_attempts.require_owned(db, *attempt.owner)
    sent = StreamPart(name, part.offset, part.data, part.clock)
    return remote_attempts.append(db, config, run, sent)


@router.post(_ATTEMPT + "/uploads/{sha256}", openapi_extra=_BINARY_BODY)
def upload(
    attempt: Attempt, sha256: Hash, part: FilePart, db: ReadDB, config: Config
) -> UploadAnswer:
    """Append the next bytes of a file that a folder needs."""
    run = remote_attempts.require_owned(db, *attempt.owner)
    arrived = folders.incoming(remote_attempts.run_folder(config, run), run.attempt)
    return folders.append(arrived, sha256, part.offset, part.size, part.data)


@router.post(_ATTEMPT + "/folders")
def place(attempt: Attempt, body: FolderRequest, db: DB, config: Config) -> FolderAnswer:
    """Put a folder in place once its files have arrived; until then, list those that have not."""
    run = remote_attempts.require_owned(db, *attempt.owner)
    return folders.receive(remote_attempts.run_folder(config, run), run.attempt, body)


@router.post(_ATTEMPT + "/end")
def end(attempt: Attempt, body: AttemptEnd, db: DB, config: Config) -> EndAnswer:
    """Say how the process ended, after all that it wrote has been sent."""
    run = remote_attempts.require_owned(db, *attempt.owner)
    remote_attempts.end(db, config, run, body)
    return EndAnswer(status=run.status)


def _index(request: Request) -> InputIndex:
    index: InputIndex = request.app.state.run_files
    return index
