"""Data sets as JSON: bring, list, look into, rename, delete."""

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query

from studio.intake.turns import Role
from studio.services import datasets
from studio.services.datasets import Split
from studio.web.api.shapes import After, Body, Limit, Listing, Name, Out, page_of
from studio.web.deps import DB, Config
from studio.web.uploads import DATASET_FORM, NewUpload

router = APIRouter(prefix="/api/v1/datasets", tags=["datasets"])

DatasetId = Annotated[int, Path(ge=1, lt=2**63)]
RowsAfter = Annotated[int, Query(ge=0, lt=2**53)]
RowsLimit = Annotated[int, Query(ge=1, le=200)]


class ProblemOut(Out):
    """What is wrong with some rows; they were left out, the others are kept."""

    code: str
    message: str
    count: int
    rows: list[int]
    """The first of them: lines of JSON lines and CSV, else places counted from one."""
    blocking: bool
    split: Split


class DatasetOut(Out):
    id: int
    name: str
    filename: str
    format: str
    shape: str
    mapping: dict[str, str]
    bytes: int
    sha256: str
    train_rows: int
    validation_rows: int
    problems: list[ProblemOut]
    created_at: datetime


class TurnOut(Out):
    role: Role
    content: str


class RowOut(Out):
    number: int
    messages: list[TurnOut]


class ChangedDataset(Body):
    name: Name


@router.post("", status_code=201, openapi_extra=DATASET_FORM)
def add(upload: NewUpload, db: DB, config: Config) -> DatasetOut:
    """Upload JSON lines, JSON, CSV or Parquet. The columns are told from their names."""
    return DatasetOut.model_validate(datasets.add(db, config.datasets, upload))


@router.get("")
def newest(db: DB, after: After = None, limit: Limit = 50) -> Listing[DatasetOut]:
    rows = datasets.newest(db, limit=limit + 1, before=after)
    return page_of(rows, limit, [DatasetOut.model_validate(row) for row in rows])


@router.get("/{dataset_id}")
def show(dataset_id: DatasetId, db: DB) -> DatasetOut:
    return DatasetOut.model_validate(datasets.get(db, dataset_id))


@router.patch("/{dataset_id}")
def change(dataset_id: DatasetId, changed: ChangedDataset, db: DB) -> DatasetOut:
    return DatasetOut.model_validate(datasets.rename(db, dataset_id, changed.name))


@router.delete("/{dataset_id}", status_code=204)
def delete(dataset_id: DatasetId, db: DB, config: Config) -> None:
    datasets.delete(db, config.datasets, dataset_id)


@router.get("/{dataset_id}/rows")
def rows(
    dataset_id: DatasetId,
    db: DB,
    config: Config,
    split: Split = "train",
    after: RowsAfter = 0,
    limit: RowsLimit = 50,
) -> Listing[RowOut]:
    """Show the rows as they are trained on, in their order. A page of long rows ends early."""
    dataset = datasets.get(db, dataset_id)
    page = datasets.rows(config.datasets, dataset, split, after=after, limit=limit)
    shown = [RowOut.model_validate(row) for row in page.rows]
    return Listing(data=shown, has_more=page.has_more, next_after=page.next_after)


@router.get("/{dataset_id}/problems")
def problems(dataset_id: DatasetId, db: DB) -> Listing[ProblemOut]:
    """Tell which rows were left out and why, and which columns are not used."""
    found: list[dict[str, Any]] = datasets.get(db, dataset_id).problems
    shown = [ProblemOut.model_validate(problem) for problem in found]
    return Listing(data=shown, has_more=False, next_after=None)
