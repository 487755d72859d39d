"""Files of the OpenAI-compatible API: uploaded datasets, and result tables of runs."""

from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi.responses import FileResponse
from sqlmodel import Session

from studio.db.tables import Dataset, Run
from studio.errors import InvalidError
from studio.services.accounts import owners
from studio.services.datasets import datasets
from studio.services.datasets.pending_datasets import Upload
from studio.services.openai import file_objects
from studio.web.api.openai.schemas import Deleted, OpenAIListing, Out, make_page, unix_seconds
from studio.web.http.deps import DB, Config
from studio.web.http.multipart_upload import FormFields, read_limits, receive_form

router = APIRouter(prefix="/v1/files", tags=["openai"])

PURPOSE, RESULTS_PURPOSE = "fine-tune", "fine-tune-results"
MAX_RESULTS = 100
"""The most result tables on one page: computing their sizes takes time."""

_FORM_FIELDS = FormFields(
    text_fields=frozenset({"purpose", "expires_after[anchor]", "expires_after[seconds]"}),
    file_fields=frozenset({"file"}),
)
_REQUEST_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["file", "purpose"],
                    "properties": {
                        "file": {"type": "string", "format": "binary"},
                        "purpose": {"type": "string", "enum": [PURPOSE]},
                    },
                }
            }
        },
    }
}


class FileOut(Out):
    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    filename: str
    purpose: str
    status: Literal["uploaded", "processed", "error"]
    """uploaded: it is being read; error: it cannot be trained on as it is."""
    status_details: str | None = None
    """The problems of its rows, and where they are."""
    expires_at: int | None = None


async def _receive_upload(request: Request, config: Config) -> AsyncIterator[Upload]:
    async with receive_form(request, config.datasets, _FORM_FIELDS) as form:
        file, purpose = form.files.get("file"), form.fields.get("purpose", "")
        if file is None:
            raise InvalidError("A file is needed.", param="file")
        if purpose != PURPOSE:
            raise InvalidError(
                f"The purpose {purpose[:50]!r} is not supported; use {PURPOSE!r}.",
                param="purpose",
            )
        if any(name.startswith("expires_after") for name in form.fields):
            raise InvalidError(
                "Files do not expire here; delete a file when you no longer need it.",
                param="expires_after",
            )
        yield Upload(
            path=file.path,
            filename=file.filename,
            may_rename=True,
            source="OpenAI API",
            limits=read_limits(config),
            sha256=file.sha256,
        )


ReceivedUpload = Annotated[Upload, Depends(_receive_upload)]
Retries = Annotated[int, Header(alias="x-stainless-retry-count", ge=0)]


@router.post("", openapi_extra=_REQUEST_BODY)
def create(upload: ReceivedUpload, db: DB, config: Config, retries: Retries = 0) -> FileOut:
    """Upload a file with `purpose="fine-tune"` as a dataset, in any supported format."""
    dataset = file_objects.create(db, config.datasets, upload, is_again=retries > 0)
    return _dataset_file(db, dataset)


@router.get("")
def newest(
    db: DB,
    purpose: str | None = None,
    after: str | None = None,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 10_000,
    order: Literal["asc", "desc"] = "desc",
) -> OpenAIListing[FileOut]:
    """List the datasets, newest first; with `purpose=fine-tune-results`, the result tables."""
    if purpose == RESULTS_PURPOSE:
        limit = min(limit, MAX_RESULTS)
        rows: list[Any] = list(file_objects.list_runs_with_results(db))
        ids = [f"file-results-{run.id}" for run in rows]
    else:
        rows = list(datasets.newest(db, limit=100_000)) if purpose in {None, PURPOSE} else []
        ids = [f"file-{dataset.id}" for dataset in rows]
    if order == "asc":
        rows, ids = rows[::-1], ids[::-1]
    if after is not None and after not in ids:
        raise InvalidError(f"File {after[:100]} not found.", param="after")
    start = ids.index(after) + 1 if after is not None else 0
    ids = ids[start : start + limit + 1]
    page_files = [_file_out(db, row) for row in rows[start : start + limit]]
    return make_page(page_files, ids, limit)


@router.get("/{file_id}")
def show(file_id: str, db: DB) -> FileOut:
    run = file_objects.get_results_run(db, file_id)
    return _file_out(db, run or file_objects.get(db, file_id))


@router.get("/{file_id}/content", response_class=Response)
def content(file_id: str, db: DB, config: Config) -> Response:
    """Download a file as it was uploaded, or a result table as CSV."""
    run = file_objects.get_results_run(db, file_id)
    if run is not None:
        return Response(file_objects.results_csv(db, run), media_type="text/csv")
    dataset = file_objects.get(db, file_id)
    path = file_objects.content_path(db, config.datasets, dataset)
    return FileResponse(path, media_type="application/octet-stream", filename=dataset.filename)


@router.delete("/{file_id}")
def delete(file_id: str, db: DB, config: Config) -> Deleted:
    """Delete a dataset. Runs that were trained on it are not deleted."""
    if file_objects.get_results_run(db, file_id) is not None:
        raise InvalidError("To delete the results of a run, delete the run.", param="id")
    dataset_id = file_objects.get(db, file_id).id or 0
    owners.require(db, "datasets", [dataset_id])
    datasets.delete(db, config.datasets, dataset_id)
    return Deleted(id=file_id, object="file")


def _file_out(db: Session, row: Dataset | Run) -> FileOut:
    return _dataset_file(db, row) if isinstance(row, Dataset) else _results_file(db, row)


def _dataset_file(db: Session, dataset: Dataset) -> FileOut:
    status, details = file_objects.status(db, dataset)
    return FileOut.model_validate(
        {
            "id": f"file-{dataset.id}",
            "bytes": dataset.bytes,
            "created_at": unix_seconds(dataset.created_at),
            "filename": dataset.filename,
            "purpose": PURPOSE,
            "status": status,
            "status_details": details,
        }
    )


def _results_file(db: Session, run: Run) -> FileOut:
    return FileOut(
        id=f"file-results-{run.id}",
        bytes=len(file_objects.results_csv(db, run)),
        created_at=unix_seconds(run.finished_at or run.created_at),
        filename=f"results-{run.id}.csv",
        purpose=RESULTS_PURPOSE,
        status="processed",
    )
