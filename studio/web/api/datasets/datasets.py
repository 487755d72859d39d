"""Data sets as JSON: bring, list, look into, rename, delete."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, Literal

from annotated_types import Ge, Lt
from fastapi import APIRouter, Response
from pydantic import Field, model_validator
from sqlmodel import Session

from studio.db.states import DatasetStatus
from studio.db.tables import Dataset, DatasetVersion
from studio.services.datasets import dataset_builds, datasets, import_sources, versions
from studio.services.datasets.pending_datasets import Upload
from studio.services.datasets.versions import Part
from studio.web.api.conventions.api_route import ApiRoute
from studio.web.api.conventions.preconditions import EtagPrecondition, EtagResponse
from studio.web.api.conventions.schemas import After, Body, Id, Limit, Listing, Name, Out, make_page
from studio.web.api.datasets.new_dataset import REQUEST_BODY, NewDataset
from studio.web.api.system import tasks
from studio.web.api.system.tasks import TaskOut
from studio.web.http.deps import DB, Config

router = APIRouter(route_class=ApiRoute, prefix="/api/v1/datasets", tags=["datasets"])


class ProblemOut(Out):
    """What is wrong with some rows, or worth knowing about the whole file."""

    kind: Literal["left_out", "note", "finding"] = "left_out"
    """left_out: they could not be used, and the others are kept; note: how the file was read, such
    as columns that are not used; finding: they are kept, and should be looked at."""
    code: str
    message: str
    count: int
    rows: list[int]
    """The first of them. Of what was left out: lines of JSON lines and CSV, else places in the
    file; of a finding: places among the rows that are kept, counted from one in their part."""
    places: list[str] = Field(default_factory=list)
    """The same in an archive of several files: "12 of b.jsonl"."""
    blocking: bool
    """Whether no run can start."""
    split: Part

    @model_validator(mode="before")
    @classmethod
    def _tell_notes(cls, problem: dict[str, Any]) -> dict[str, Any]:
        # Rows that are left out are always named.
        return {"kind": "left_out" if problem["rows"] else "note"} | problem


class DatasetOut(Out):
    """A data set, with the version of its rows that new runs learn from."""

    id: int
    name: str
    filename: str
    format: str
    bytes: int
    sha256: str
    """Of the file as it was brought."""
    source: str
    status: DatasetStatus
    version: int | None
    """The number of the version in use; null until the file has been read."""
    kind: str | None
    """conversation, text, preference or judged."""
    shape: str | None
    mapping: dict[str, Any] | None
    """How the file was read."""
    train_rows: int
    validation_rows: int
    problems: list[ProblemOut]
    findings: list[ProblemOut] | None
    """What is suspicious in the rows; null until they have been looked through."""
    removed: dict[str, int]
    """Rows that could be used and were not wanted, by reason."""
    chore: int | None
    """The chore that reads the file, or has read it, where that is large or takes long."""
    created_at: datetime


class ChangedDataset(Body):
    name: Name | None = None
    version: Annotated[int, Ge(1), Lt(2**31)] | None = None
    """The version that new runs are to learn from."""


@router.post(
    "",
    status_code=201,
    response_model=DatasetOut,
    responses={202: {"model": TaskOut, "description": "A chore fetches it."}},
    openapi_extra=REQUEST_BODY,
)
def add(brought: NewDataset, db: DB, config: Config) -> Any:  # noqa: ANN401 -- two shapes, told apart by the status
    """Upload JSON, CSV, Parquet, Arrow or text, packed or not; the columns are told by themselves.

    A file that is large or takes long is read by a chore: the data set is `building` until then.
    As a draft, a file waits for a mapping. Sent JSON, a chore fetches the file from its source
    (202); when that has succeeded, its result tells the data set.
    """
    if isinstance(brought, Upload):
        return _dataset_out(db, dataset_builds.import_file(db, config.datasets, brought))
    chore = tasks.task_out(import_sources.enqueue_import(db, config, brought.source, brought.name))
    return Response(chore.model_dump_json(), 202, media_type="application/json")


@router.get("")
def newest(db: DB, after: After = None, limit: Limit = 50) -> Listing[DatasetOut]:
    rows = datasets.newest(db, limit=limit + 1, before=after)
    return make_page(rows, limit, _datasets_out(db, rows))


@router.get("/{dataset_id}")
def show(dataset_id: Id, db: DB, etag: EtagResponse) -> DatasetOut:
    dataset = datasets.get(db, dataset_id)
    etag.set_header(dataset.name, dataset.version)
    return _dataset_out(db, dataset)


@router.patch("/{dataset_id}")
def change(dataset_id: Id, changed: ChangedDataset, db: DB, etag: EtagPrecondition) -> DatasetOut:
    """Rename a data set, or let new runs learn from another of its versions."""
    dataset = datasets.get(db, dataset_id)
    etag.check(dataset.name, dataset.version)
    if changed.name is not None:
        datasets.rename(db, dataset_id, changed.name)
    if changed.version is not None:
        versions.activate(db, dataset_id, changed.version)
    etag.set_header(dataset.name, dataset.version)
    return _dataset_out(db, dataset)


@router.delete("/{dataset_id}", status_code=204)
def delete(dataset_id: Id, db: DB, config: Config) -> None:
    datasets.delete(db, config.datasets, dataset_id)


def _datasets_out(db: Session, rows: Sequence[Dataset]) -> list[DatasetOut]:
    found = versions.current_by_dataset(db, rows)
    return [_version_of_dataset_out(db, one, found.get(one.id or 0)) for one in rows]


def _dataset_out(db: Session, dataset: Dataset) -> DatasetOut:
    return _version_of_dataset_out(db, dataset, versions.current(db, dataset))


def _version_of_dataset_out(
    db: Session, dataset: Dataset, version: DatasetVersion | None
) -> DatasetOut:
    may_have = dataset_builds.is_large(dataset.bytes, dataset.filename) or version is None
    chore = dataset_builds.latest_task(db, dataset.id or 0) if may_have else None
    rows = {
        "kind": version.kind if version else None,
        "shape": version.mapping["shape"] if version else None,
        "mapping": version.mapping if version else None,
        "train_rows": version.train_rows if version else 0,
        "validation_rows": version.validation_rows if version else 0,
        "problems": version.problems if version else [],
        "findings": findings_out(version),
        "removed": version.removed if version else {},
        "chore": chore.id if chore else None,
    }
    return DatasetOut.model_validate(dataset.model_dump() | rows)


def findings_out(version: DatasetVersion | None) -> list[ProblemOut] | None:
    """Return what is suspicious in a version's rows; None until they have been looked through."""
    if version is None or version.findings is None:
        return None
    return [
        ProblemOut.model_validate(one | {"kind": "finding", "split": one["part"]})
        for one in version.findings
    ]
