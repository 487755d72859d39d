"""Data sets on screen."""

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import Response
from sqlmodel import Session

from studio.db.tables import Dataset
from studio.errors import ConflictError, InvalidError, StudioError
from studio.intake.formats import ACCEPTED, IN_WORDS
from studio.intake.readers import PLACES
from studio.intake.shapes import in_words
from studio.services import datasets
from studio.services.datasets import Split
from studio.settings import Settings
from studio.web.deps import DB, Config, Posted
from studio.web.render import form_again, go, page
from studio.web.uploads import NewUpload

router = APIRouter(prefix="/datasets", include_in_schema=False)

DatasetId = Annotated[int, Path(ge=1, lt=2**63)]
After = Annotated[int, Query(ge=0, lt=2**53)]

ROWS = 50


@router.get("")
def listing(request: Request, db: DB, config: Config) -> Response:
    return page(request, "datasets/list.html", **_list(db, config))


@router.post("")
def add(request: Request, upload: NewUpload, db: DB, config: Config) -> Response:
    try:
        dataset = datasets.add(db, config.datasets, upload)
    except (ConflictError, InvalidError) as error:
        again = _list(db, config, name=upload.name, problem=error)
        return form_again(request, "datasets/list.html", **again)
    return go(request, f"/datasets/{dataset.id}")


@router.get("/{dataset_id}")
def show(
    request: Request,
    dataset_id: DatasetId,
    db: DB,
    config: Config,
    split: Split = "train",
    after: After = 0,
) -> Response:
    dataset = datasets.get(db, dataset_id)
    return page(request, "datasets/show.html", **_show(config, dataset, split, after))


@router.post("/{dataset_id}/name")
def rename(
    request: Request, dataset_id: DatasetId, posted: Posted, db: DB, config: Config
) -> Response:
    name = str(posted.get("name", ""))
    try:
        datasets.rename(db, dataset_id, name)
    except (ConflictError, InvalidError) as error:
        again = _show(config, datasets.get(db, dataset_id)) | {"name": name, "problem": error}
        return form_again(request, "datasets/show.html", **again)
    return go(request, f"/datasets/{dataset_id}")


@router.post("/{dataset_id}/delete")
def delete(request: Request, dataset_id: DatasetId, db: DB, config: Config) -> Response:
    datasets.delete(db, config.datasets, dataset_id)
    return go(request, "/datasets")


def _list(
    db: Session, config: Settings, *, name: str = "", problem: StudioError | None = None
) -> dict[str, Any]:
    return {
        "accepted": ACCEPTED,
        "formats": IN_WORDS,
        "datasets": datasets.newest(db),
        "in_words": in_words,
        "limit": config.upload_limit_bytes,
        "name": name,
        "problem": problem,
    }


def _show(
    config: Settings, dataset: Dataset, split: Split = "train", after: int = 0
) -> dict[str, Any]:
    rows = datasets.rows(config.datasets, dataset, split, after=after, limit=ROWS)
    return {
        "dataset": dataset,
        "words": in_words(dataset.shape, dataset.mapping),
        "place": PLACES[dataset.format],
        "split": split,
        "after": after,
        "rows": rows,
        "name": dataset.name,
        "problem": None,
    }
