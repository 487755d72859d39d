"""Data sets on screen."""

from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Form, Path, Query, Request
from fastapi.responses import FileResponse, Response
from sqlmodel import Session

from studio.db.states import DatasetStatus
from studio.errors import ConflictError, InvalidError, NotFoundError, StudioError
from studio.intake import mapping_text
from studio.intake.files.formats import ACCEPTED_EXTENSIONS, SUPPORTED_FORMATS
from studio.intake.mapping import Mapping
from studio.services.datasets import data_quality, dataset_builds, datasets, versions
from studio.services.datasets.data_quality import FindingRef
from studio.services.datasets.dataset_builds import BuildResult
from studio.services.datasets.versions import Part
from studio.settings import Settings
from studio.web.datasets import dataset_view, import_form
from studio.web.datasets.dataset_view import Asked
from studio.web.http.deps import DB, Config, Posted, Reads
from studio.web.http.multipart_upload import NewUpload, limits_of
from studio.web.rendering.render import form_again, go, page

router = APIRouter(prefix="/datasets", include_in_schema=False)

DatasetId = Annotated[int, Path(ge=1, lt=2**63)]
Way = Annotated[str, Query(max_length=20)]
At = Annotated[str, Query(max_length=4000)]
"""A folder to look into."""
Number = Annotated[int, Path(ge=1, lt=2**31)]


@router.get("")
def listing(
    request: Request, db: DB, config: Config, way: Way = import_form.UPLOAD, at: At = ""
) -> Response:
    shown = {"bring": import_form.of(db, config, way, at)}
    return page(request, "datasets/list.html", **listed(db, config) | shown)


@router.post("")
def add(request: Request, upload: NewUpload, db: DB, config: Config) -> Response:
    """Keep a file, and ask how it is to be read."""
    try:
        dataset = dataset_builds.import_file(db, config.datasets, replace(upload, is_draft=True))
    except (ConflictError, InvalidError) as error:
        again = listed(db, config, name=upload.name, problem=error)
        return form_again(request, "datasets/list.html", **again)
    return go(request, f"/datasets/{dataset.id}")


@router.get("/{dataset_id}")
def show(
    request: Request,
    dataset_id: DatasetId,
    db: DB,
    config: Config,
    asked: Annotated[Asked, Query()],
) -> Response:
    """Show a data set; one that nobody has said yet how to read asks for that."""
    dataset = datasets.get(db, dataset_id)
    if dataset.version is None and dataset.status is not DatasetStatus.BUILDING:
        return go(request, f"/datasets/{dataset_id}/mapping")
    return page(request, "datasets/show.html", **dataset_view.of(db, config, dataset, asked))


@router.get("/{dataset_id}/built")
def built(request: Request, dataset_id: DatasetId) -> Response:
    """Come here when a chore has read the file: the page is another one now."""
    return go(request, f"/datasets/{dataset_id}")


@router.get("/{dataset_id}/versions/{number}/{part}.jsonl")
def download(dataset_id: DatasetId, number: Number, part: Part, db: DB, config: Config) -> Response:
    version = versions.get(db, dataset_id, number)
    train, validation = versions.row_files(config.datasets, version)
    path = train if part == "train" else validation
    if path is None:
        raise NotFoundError(f"Version {number} has no rows to validate on.")
    name = datasets.get(db, dataset_id).name
    return FileResponse(path, filename=f"{name}-{number}-{part}.jsonl")


@router.post("/{dataset_id}/versions/{number}/use")
def use(request: Request, dataset_id: DatasetId, number: Number, db: DB) -> Response:
    versions.activate(db, dataset_id, number)
    return go(request, f"/datasets/{dataset_id}")


@router.post("/{dataset_id}/versions/{number}/delete")
def delete_version(
    request: Request, dataset_id: DatasetId, number: Number, db: DB, config: Config
) -> Response:
    versions.delete(db, config.datasets, dataset_id, number)
    return go(request, f"/datasets/{dataset_id}")


@router.post("/{dataset_id}/exclude")
def exclude(
    request: Request,
    dataset_id: DatasetId,
    db: Reads,
    config: Config,
    row: Annotated[list[int], Form()],
) -> Response:
    """Leave rows out, named as the file counts them; that makes a new version."""
    before = datasets.get(db, dataset_id).version
    engine, limits = request.app.state.engine, limits_of(config)
    made = data_quality.exclude_rows(engine, config.datasets, dataset_id, row, limits)
    return go(request, _after(dataset_id, made, before))


@router.post("/{dataset_id}/versions/{number}/leave-out")
def leave_out(
    request: Request,
    dataset_id: DatasetId,
    number: Number,
    config: Config,
    code: Annotated[str, Query(max_length=50)],
    split: Part = "train",
) -> Response:
    """Leave out the rows of a finding; that makes a new version."""
    wanted = FindingRef(code=code, part=split, version=number)
    engine, limits = request.app.state.engine, limits_of(config)
    made = data_quality.exclude_finding(engine, config.datasets, dataset_id, wanted, limits)
    return go(request, _after(dataset_id, made, number))


@router.post("/{dataset_id}/versions/{number}/look")
def look(
    request: Request, dataset_id: DatasetId, number: Number, db: DB, config: Config
) -> Response:
    """Have rows looked through that were read before anything was looked for in them."""
    data_quality.enqueue_scan(db, config.datasets, versions.get(db, dataset_id, number))
    return go(request, f"/datasets/{dataset_id}?version={number}#problems")


@router.post("/{dataset_id}/name")
def rename(
    request: Request, dataset_id: DatasetId, posted: Posted, db: DB, config: Config
) -> Response:
    name = str(posted.get("name", ""))
    try:
        datasets.rename(db, dataset_id, name)
    except (ConflictError, InvalidError) as error:
        found = dataset_view.of(db, config, datasets.get(db, dataset_id), Asked())
        return form_again(request, "datasets/show.html", **found | {"name": name, "problem": error})
    return go(request, f"/datasets/{dataset_id}")


@router.post("/{dataset_id}/delete")
def delete(request: Request, dataset_id: DatasetId, db: DB, config: Config) -> Response:
    datasets.delete(db, config.datasets, dataset_id)
    return go(request, "/datasets")


def _after(dataset_id: int, made: BuildResult, before: int | None) -> str:
    """Return where to go when rows have been left out: to the page that says so."""
    told = "same" if not made.is_new else f"out&before={before}"
    return f"/datasets/{dataset_id}" + ("" if made.chore else f"?told={told}")


def listed(
    db: Session, config: Settings, *, name: str = "", problem: StudioError | None = None
) -> dict[str, Any]:
    """Return what the page of all data sets shows."""
    found = datasets.newest(db)
    current = versions.current_by_dataset(db, found)
    return {
        "accepted": ACCEPTED_EXTENSIONS,
        "formats": SUPPORTED_FORMATS,
        "datasets": found,
        "versions": current,
        "words": {
            number: mapping_text.describe_mapping(Mapping.model_validate(one.mapping))
            for number, one in current.items()
        },
        "bring": import_form.of(db, config),
        "limit": config.upload_limit_bytes,
        "name": name,
        "problem": problem,
    }
