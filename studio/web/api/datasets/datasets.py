"""REST routes of datasets: upload in chunks or at once, import, list, show, rename, delete."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Annotated, Any, Literal

from annotated_types import Ge, Lt
from fastapi import APIRouter, Depends, Header, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import Field, ValidationError, model_validator
from sqlmodel import Session
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect

from studio.data_sources import Source
from studio.db.states import DatasetStatus
from studio.db.tables import Dataset, DatasetVersion
from studio.services.datasets import dataset_builds, datasets, import_sources, uploads, versions
from studio.services.datasets.pending_datasets import Upload
from studio.services.datasets.uploads import PartialUpload
from studio.services.datasets.versions import Part
from studio.web.api import conventions as api
from studio.web.api.system import system
from studio.web.api.system.system import TaskOut
from studio.web.http.deps import DB, Config
from studio.web.http.multipart_upload import receive_dataset

router = APIRouter(route_class=api.ApiRoute, prefix="/api/v1/datasets", tags=["datasets"])


_BINARY = {"type": "string", "format": "binary"}


def _text_schema(description: str, *choices: str) -> dict[str, Any]:
    options = {"enum": list(choices)} if choices else {}
    return {"type": "string", **options, "description": description}


_FORM_FIELDS = {
    "file": _BINARY,
    "validation_file": _BINARY,
    "name": _text_schema("Defaults to the file name."),
    "mapping": _text_schema("How columns become rows: a Mapping as JSON. Detected by default."),
    "encoding": _text_schema(
        "Text encoding by its Python name, such as gb18030 or cp1252. Detected by default."
    ),
    "sheet": _text_schema(
        "The sheet of an Excel workbook to read. Defaults to the first sheet with rows."
    ),
    "separator": _text_schema(
        "The delimiter of a CSV file. Detected by default.", ",", ";", "tab", "|", "^"
    ),
    "header": _text_schema(
        "Whether the first line of a table is a header. Detected by default.", "yes", "no"
    ),
    "draft": {"type": "boolean", "description": "Save the file and wait for a mapping."},
}
REQUEST_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {"type": "object", "required": ["file"], "properties": _FORM_FIELDS}
            },
            "application/json": {"schema": {"$ref": "#/components/schemas/NewImport"}},
        },
    }
}
"""The OpenAPI schema of the body. FastAPI cannot infer it: the route parses the body itself."""


class NewImport(api.Body):
    """A dataset to import from a folder, a URL, the Hugging Face Hub, S3 or a chunked upload."""

    source: Source
    name: str = Field(default="", max_length=200)
    """The name of the dataset; defaults to the file name."""


async def _parse_request(request: Request, config: Config) -> AsyncIterator[Upload | NewImport]:
    if request.headers.get("content-type", "").partition(";")[0].strip() == "application/json":
        yield _parse_import(await request.body())
        return
    async with asynccontextmanager(receive_dataset)(request, config) as upload:
        yield upload


def _parse_import(body: bytes) -> NewImport:
    try:
        return NewImport.model_validate_json(body)
    except ValidationError as error:
        details = error.errors(include_url=False, include_input=False)
        raise RequestValidationError(
            [detail | {"loc": ("body", *detail["loc"])} for detail in details]
        ) from error


NewDataset = Annotated[Upload | NewImport, Depends(_parse_request)]


class ProblemOut(api.Out):
    """A problem with some rows, or a note about the whole file."""

    kind: Literal["left_out", "note", "finding"] = "left_out"
    """left_out: the rows were unusable and excluded; note: how the file was read, such as unused
    columns; finding: the rows are included but should be reviewed."""
    code: str
    message: str
    count: int
    rows: list[int]
    """The first affected rows. If left out: line numbers of JSON Lines and CSV, otherwise positions
    in the file; for a finding: positions among the usable rows of the split, starting at one."""
    places: list[str] = Field(default_factory=list)
    """The same rows in an archive of several files: "12 of b.jsonl"."""
    blocking: bool
    """Whether it prevents runs from starting."""
    split: Part

    @model_validator(mode="before")
    @classmethod
    def _tell_notes(cls, problem: dict[str, Any]) -> dict[str, Any]:
        # Excluded rows always have row numbers.
        return {"kind": "left_out" if problem["rows"] else "note"} | problem


class DatasetOut(api.Out):
    """A dataset, with the version that new runs train on."""

    id: int
    name: str
    filename: str
    format: str
    bytes: int
    sha256: str
    """Of the original file."""
    source: str
    status: DatasetStatus
    version: int | None
    """The number of the current version; null until the file has been read."""
    kind: str | None
    """conversation, text, preference, judged, steps, tokens, task, pairs or images."""
    shape: str | None
    mapping: dict[str, Any] | None
    """How columns become rows."""
    train_rows: int
    validation_rows: int
    problems: list[ProblemOut]
    findings: list[ProblemOut] | None
    """Possible problems in the rows; null until they have been scanned."""
    removed: dict[str, int]
    """Usable rows that were filtered out, by reason."""
    chore: int | None
    """The task that reads or has read the file, if it is large or slow to read."""
    created_at: datetime


class ChangedDataset(api.Body):
    name: api.Name | None = None
    version: Annotated[int, Ge(1), Lt(2**31)] | None = None
    """The version that new runs train on."""


@router.post(
    "",
    status_code=201,
    response_model=DatasetOut,
    responses={202: {"model": TaskOut, "description": "A task fetches the file."}},
    openapi_extra=REQUEST_BODY,
)
def add(new_dataset: NewDataset, db: DB, config: Config) -> Any:  # noqa: ANN401 -- two schemas, one per status
    """Upload JSON, CSV, Parquet, Arrow or text, compressed or not; columns are detected.

    A task reads a file that is large or slow to read: until then, the dataset is `building`.
    A draft waits for a mapping. If you send JSON, a task fetches the file from its source (202);
    when it succeeds, its result names the dataset.
    """
    if isinstance(new_dataset, Upload):
        return _dataset_out(db, dataset_builds.import_file(db, config.datasets, new_dataset))
    task = system.task_out(
        import_sources.enqueue_import(db, config, new_dataset.source, new_dataset.name)
    )
    return Response(task.model_dump_json(), 202, media_type="application/json")


@router.get("")
def newest(db: DB, after: api.After = None, limit: api.Limit = 50) -> api.Listing[DatasetOut]:
    rows = datasets.newest(db, limit=limit + 1, before=after)
    return api.make_page(rows, limit, _datasets_out(db, rows))


@router.get("/{dataset_id}")
def show(dataset_id: api.Id, db: DB, etag: api.EtagResponse) -> DatasetOut:
    dataset = datasets.get(db, dataset_id)
    etag.set_header(dataset.name, dataset.version)
    return _dataset_out(db, dataset)


@router.patch("/{dataset_id}")
def change(
    dataset_id: api.Id, changed: ChangedDataset, db: DB, etag: api.EtagPrecondition
) -> DatasetOut:
    """Rename a dataset, or choose the version that new runs train on."""
    dataset = datasets.get(db, dataset_id)
    etag.check(dataset.name, dataset.version)
    if changed.name is not None:
        datasets.rename(db, dataset_id, changed.name)
    if changed.version is not None:
        versions.activate(db, dataset_id, changed.version)
    etag.set_header(dataset.name, dataset.version)
    return _dataset_out(db, dataset)


@router.delete("/{dataset_id}", status_code=204)
def delete(dataset_id: api.Id, db: DB, config: Config) -> None:
    datasets.delete(db, config.datasets, dataset_id)


def _datasets_out(db: Session, rows: Sequence[Dataset]) -> list[DatasetOut]:
    current_versions = versions.current_by_dataset(db, rows)
    return [
        _version_of_dataset_out(db, dataset, current_versions.get(dataset.id or 0))
        for dataset in rows
    ]


def _dataset_out(db: Session, dataset: Dataset) -> DatasetOut:
    return _version_of_dataset_out(db, dataset, versions.current(db, dataset))


def _version_of_dataset_out(
    db: Session, dataset: Dataset, version: DatasetVersion | None
) -> DatasetOut:
    may_have_task = dataset_builds.is_large(dataset.bytes, dataset.filename) or version is None
    task = dataset_builds.latest_task(db, dataset.id or 0) if may_have_task else None
    rows = {
        "kind": version.kind if version else None,
        "shape": version.mapping["shape"] if version else None,
        "mapping": version.mapping if version else None,
        "train_rows": version.train_rows if version else 0,
        "validation_rows": version.validation_rows if version else 0,
        "problems": version.problems if version else [],
        "findings": findings_out(version),
        "removed": version.removed if version else {},
        "chore": task.id if task else None,
    }
    return DatasetOut.model_validate(dataset.model_dump() | rows)


def findings_out(version: DatasetVersion | None) -> list[ProblemOut] | None:
    """Return the findings of a version; None until its rows have been scanned."""
    if version is None or version.findings is None:
        return None
    return [
        ProblemOut.model_validate(finding | {"kind": "finding", "split": finding["part"]})
        for finding in version.findings
    ]


uploads_router = APIRouter(route_class=api.ApiRoute, prefix="/api/v1/uploads", tags=["uploads"])

Offset = Annotated[int, Header(alias="Upload-Offset", ge=0)]

_CHUNK_BYTES = 2**20


class NewUpload(api.Body):
    filename: str
    size: int
    """Size of the whole file in bytes."""


class UploadOut(api.Out):
    id: str
    filename: str
    size: int
    offset: int
    """Bytes received so far: where the next chunk starts."""


@uploads_router.post("", status_code=201)
def begin(new: NewUpload, config: Config, response: Response) -> UploadOut:
    """Start an upload. It is deleted if it is not complete within a day."""
    upload = uploads.create(config.uploads, new.filename, new.size, config.upload_limit_bytes)
    response.headers["Location"] = f"/api/v1/uploads/{upload.id}"
    return UploadOut.model_validate(upload)


@uploads_router.head("/{upload}", status_code=204)
def offset(upload: str, config: Config) -> Response:
    """Return the bytes received so far as `Upload-Offset`."""
    return _offset_response(uploads.get(config.uploads, upload))


@uploads_router.get("/{upload}", name="show")
def show_upload(upload: str, config: Config) -> UploadOut:
    return UploadOut.model_validate(uploads.get(config.uploads, upload))


@uploads_router.patch(
    "/{upload}",
    status_code=204,
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {
                "application/offset+octet-stream": {
                    "schema": {"type": "string", "format": "binary"}
                }
            },
        }
    },
)
async def send(request: Request, upload: str, upload_offset: Offset, config: Config) -> Response:
    """Send the next bytes, starting at `Upload-Offset`. Bytes before a disconnect are saved."""
    with uploads.open_writer(config.uploads, upload, upload_offset) as writer:
        buffer = bytearray()
        try:
            async for chunk in request.stream():
                buffer += chunk
                if len(buffer) >= _CHUNK_BYTES:
                    await run_in_threadpool(writer.write, bytes(buffer))
                    buffer.clear()
        except ClientDisconnect:
            pass  # The client cannot get a response; it asks for the offset when it resumes.
        await run_in_threadpool(writer.write, bytes(buffer))
    return _offset_response(await run_in_threadpool(uploads.get, config.uploads, upload))


@uploads_router.delete("/{upload}", status_code=204)
def drop(upload: str, config: Config) -> None:
    uploads.delete(config.uploads, upload)


def _offset_response(parts: PartialUpload) -> Response:
    headers = {
        "Upload-Offset": str(parts.offset),
        "Upload-Length": str(parts.size),
        "Tus-Resumable": "1.0.0",
        "Cache-Control": "no-store",
    }
    return Response(status_code=204, headers=headers)
