"""REST routes of model exports: create, list, show, download, delete."""

import io
import re
import zipfile
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from fastapi import APIRouter
from fastapi.responses import FileResponse, PlainTextResponse, StreamingResponse

from studio.db.states import TaskStatus
from studio.db.tasks import Export
from studio.errors import ConflictError
from studio.protocols.run_dir import ExportDir, RunDir
from studio.recipe.exports import ExportKind
from studio.recipe.precision import DType
from studio.services.exports import exports
from studio.services.queue import overview
from studio.services.runs import artifacts, runs
from studio.web.api.conventions import (
    ApiRoute,
    Body,
    ErrorOut,
    Id,
    Listing,
    Out,
    WaitingOut,
    waiting_out,
)
from studio.web.api.models import models
from studio.web.api.models.models import ModelOut
from studio.web.api.runs.run_results import ArtifactOut
from studio.web.http.deps import DB, Config

router = APIRouter(route_class=ApiRoute, prefix="/api/v1/runs/{run_id}/exports", tags=["exports"])


LOG_LINES = 500


class NewExport(Body):
    dtype: DType
    kind: ExportKind | None = None
    """full, merged, merged_original or adapter; null exports the full model as it was trained.

    merged merges the adapter into the base model it was trained with, dequantised if necessary;
    merged_original, offered if that base was rounded or quantised, into the base as saved.
    """


class ExportOut(Out):
    id: int
    run_id: int
    kind: ExportKind
    dtype: DType
    status: TaskStatus
    phase: str
    progress: float
    measured: dict[str, float]
    """The effect of the conversion on weights and perplexity; empty until it has succeeded."""
    files: list[ArtifactOut]
    error: ErrorOut | None
    waiting: WaitingOut | None
    """Why it is waiting; null once it has started."""
    created_at: datetime
    finished_at: datetime | None


@router.post("", status_code=201)
def request(run_id: Id, new: NewExport, db: DB, config: Config) -> ExportOut:
    """Queue an export. Small ones run during training, others when no run needs the slot."""
    return _export_out(db, exports.create(db, run_id, new.dtype, new.kind, config.runs), config)


@router.get("")
def newest(run_id: Id, db: DB, config: Config) -> Listing[ExportOut]:
    runs.get(db, run_id)
    items = [_export_out(db, export, config) for export in exports.list_for_run(db, run_id)]
    return Listing.complete(items)


@router.get("/{export_id}")
def show(run_id: Id, export_id: Id, db: DB, config: Config) -> ExportOut:
    return _export_out(db, exports.get(db, run_id, export_id), config)


@router.delete("/{export_id}", status_code=204)
def delete(run_id: Id, export_id: Id, db: DB, config: Config) -> None:
    """Delete an export and its files; stops it if it is in progress."""
    exports.delete(db, run_id, export_id, config.runs)


@router.post("/{export_id}/model", status_code=201)
def offer(run_id: Id, export_id: Id, db: DB, config: Config) -> ModelOut:
    """Add the export to the models that runs can start from."""
    return models.model_out(exports.register_model(db, run_id, export_id, config.runs))


@router.get("/{export_id}/log", response_class=PlainTextResponse)
def log(run_id: Id, export_id: Id, db: DB, config: Config) -> str:
    """Return the last lines of the export's log."""
    folder = _export_folder(exports.get(db, run_id, export_id), config)
    return "\n".join(artifacts.read_log(folder.log, None, LOG_LINES).lines)


@router.get("/{export_id}/files/{name:path}")
def file(run_id: Id, export_id: Id, name: str, db: DB, config: Config) -> FileResponse:
    folder = _export_folder(exports.get(db, run_id, export_id), config)
    path = artifacts.find_file(folder.files, name)
    return FileResponse(path, filename=path.name, media_type="application/octet-stream")


@router.get("/{export_id}/zip", response_class=StreamingResponse)
def whole(run_id: Id, export_id: Id, db: DB, config: Config) -> StreamingResponse:
    """Download all files as a zip."""
    export = exports.get(db, run_id, export_id)
    if export.status is not TaskStatus.SUCCEEDED:
        raise ConflictError(
            f"Export {export_id} is {export.status}.", hint="Wait until it has succeeded."
        )
    name = _zip_name(runs.get(db, run_id).name, export)
    return StreamingResponse(
        stream_zip(_export_folder(export, config).files, name),
        media_type="application/zip",
        headers={"Content-Disposition": f'attachment; filename="{name}.zip"'},
    )


def _export_out(db: DB, export: Export, config: Config) -> ExportOut:
    files = artifacts.list_files(_export_folder(export, config).files)
    error = {
        "code": export.error_code,
        "message": export.error_message,
        "hint": export.error_hint,
    }
    fields = export.model_dump() | {
        "progress": export.share,
        "files": [ArtifactOut(name=file_info.name, bytes=file_info.bytes) for file_info in files],
        "error": error if export.error_code else None,
        "waiting": waiting_out(overview.explain_work_wait(db, export)),
    }
    return ExportOut.model_validate(fields)


def _export_folder(export: Export, config: Config) -> ExportDir:
    return RunDir(config.runs / str(export.run_id)).export(export.id or 0)


def _zip_name(run: str, export: Export) -> str:
    """Return a file name that is valid on every system."""
    plain = re.sub(r"[^A-Za-z0-9]+", "-", run).strip("-").lower()[:60] or "run"
    return f"{plain}-{export.run_id}-{export.kind}-{export.dtype}"


CHUNK_BYTES = 2**20
"""Bytes per read."""


def stream_zip(folder: Path, name: str) -> Iterator[bytes]:
    """Yield a zip of a folder's files, inside a top-level folder called `name`.

    Files are stored uncompressed: weights barely compress, and it would take minutes.
    """
    buffer = _ZipBuffer()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            arcname = f"{name}/{path.relative_to(folder).as_posix()}"
            entry = zipfile.ZipInfo.from_file(path, arcname)
            with path.open("rb") as source, archive.open(entry, "w") as target:
                while chunk := source.read(CHUNK_BYTES):
                    target.write(chunk)
                    yield buffer.drain()
    yield buffer.drain()


class _ZipBuffer(io.RawIOBase):
    """Holds what was written since the last drain. Not seekable, so zipfile never seeks back."""

    def __init__(self) -> None:
        self._held = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        chunk = bytes(memoryview(data))  # type: ignore[arg-type] # whatever zipfile writes
        self._held += chunk
        return len(chunk)

    def drain(self) -> bytes:
        content = bytes(self._held)
        self._held.clear()
        return content
