"""Pages of datasets: list, show, rename, delete, versions and downloads."""

from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Form, Path, Query, Request
from fastapi.responses import FileResponse, Response

from studio.db.states import DatasetStatus
from studio.errors import ConflictError, InvalidError, NotFoundError
from studio.services.datasets import data_quality, dataset_builds, datasets, versions
from studio.services.datasets.data_quality import FindingRef
from studio.services.datasets.dataset_builds import BuildResult
from studio.services.datasets.versions import Part
from studio.web.datasets import dataset_view, import_page
from studio.web.datasets.dataset_view import DatasetQuery
from studio.web.http.deps import DB, Config, PostedForm, ReadDB
from studio.web.http.multipart_upload import NewUpload, read_limits
from studio.web.rendering.render import page, redirect, refused_form

router = APIRouter(prefix="/datasets", include_in_schema=False)

DatasetId = Annotated[int, Path(ge=1, lt=2**63)]
ImportKind = Annotated[str, Query(max_length=20)]
FolderPath = Annotated[str, Query(max_length=4000)]
"""Folder to list."""
VersionNumber = Annotated[int, Path(ge=1, lt=2**31)]


@router.get("")
def listing(
    request: Request,
    db: DB,
    config: Config,
    way: ImportKind = import_page.UPLOAD,
    at: FolderPath = "",
) -> Response:
    form_context = {"bring": import_page.build_form(db, config, way, at)}
    return page(
        request, "datasets/list.html", **import_page.list_context(db, config) | form_context
    )


@router.post("")
def add(request: Request, upload: NewUpload, db: DB, config: Config) -> Response:
    """Save an uploaded file as a draft, then ask for its mapping."""
    try:
        dataset = dataset_builds.import_file(db, config.datasets, replace(upload, is_draft=True))
    except (ConflictError, InvalidError) as error:
        context = import_page.list_context(db, config, name=upload.name, problem=error)
        return refused_form(request, "datasets/list.html", **context)
    return redirect(request, f"/datasets/{dataset.id}")


@router.get("/{dataset_id}")
def show(
    request: Request,
    dataset_id: DatasetId,
    db: DB,
    config: Config,
    asked: Annotated[DatasetQuery, Query()],
) -> Response:
    """Show a dataset, or its mapping form if it has no version yet."""
    dataset = datasets.get(db, dataset_id)
    if dataset.version is None and dataset.status is not DatasetStatus.BUILDING:
        return redirect(request, f"/datasets/{dataset_id}/mapping")
    return page(
        request, "datasets/show.html", **dataset_view.build_context(db, config, dataset, asked)
    )


@router.get("/{dataset_id}/built")
def after_build(request: Request, dataset_id: DatasetId) -> Response:
    """Redirect to the dataset once its build task has ended."""
    return redirect(request, f"/datasets/{dataset_id}")


@router.get("/{dataset_id}/versions/{number}/{part}.jsonl")
def download(
    dataset_id: DatasetId, number: VersionNumber, part: Part, db: DB, config: Config
) -> Response:
    version = versions.get(db, dataset_id, number)
    train, validation = versions.row_files(config.datasets, version)
    path = train if part == "train" else validation
    if path is None:
        raise NotFoundError(f"Version {number} has no validation rows.")
    name = datasets.get(db, dataset_id).name
    return FileResponse(path, filename=f"{name}-{number}-{part}.jsonl")


@router.post("/{dataset_id}/versions/{number}/use")
def use_version(request: Request, dataset_id: DatasetId, number: VersionNumber, db: DB) -> Response:
    versions.activate(db, dataset_id, number)
    return redirect(request, f"/datasets/{dataset_id}")


@router.post("/{dataset_id}/versions/{number}/delete")
def delete_version(
    request: Request, dataset_id: DatasetId, number: VersionNumber, db: DB, config: Config
) -> Response:
    versions.delete(db, config.datasets, dataset_id, number)
    return redirect(request, f"/datasets/{dataset_id}")


@router.post("/{dataset_id}/exclude")
def exclude(
    request: Request,
    dataset_id: DatasetId,
    db: ReadDB,
    config: Config,
    row: Annotated[list[int], Form()],
) -> Response:
    """Exclude rows by their number in the file; this creates a new version."""
    previous_version = datasets.get(db, dataset_id).version
    engine, limits = request.app.state.engine, read_limits(config)
    result = data_quality.exclude_rows(engine, config.datasets, dataset_id, row, limits)
    return redirect(request, _url_after_exclusion(dataset_id, result, previous_version))


@router.post("/{dataset_id}/versions/{number}/leave-out")
def leave_out(
    request: Request,
    dataset_id: DatasetId,
    number: VersionNumber,
    config: Config,
    code: Annotated[str, Query(max_length=50)],
    split: Part = "train",
) -> Response:
    """Exclude the rows of a finding; this creates a new version."""
    finding = FindingRef(code=code, part=split, version=number)
    engine, limits = request.app.state.engine, read_limits(config)
    result = data_quality.exclude_finding(engine, config.datasets, dataset_id, finding, limits)
    return redirect(request, _url_after_exclusion(dataset_id, result, number))


@router.post("/{dataset_id}/versions/{number}/look")
def start_quality_check(
    request: Request, dataset_id: DatasetId, number: VersionNumber, db: DB, config: Config
) -> Response:
    """Queue the data checks of a version that was built before those checks existed."""
    data_quality.enqueue_scan(db, config.datasets, versions.get(db, dataset_id, number))
    return redirect(request, f"/datasets/{dataset_id}?version={number}#problems")


@router.post("/{dataset_id}/name")
def rename(
    request: Request, dataset_id: DatasetId, posted: PostedForm, db: DB, config: Config
) -> Response:
    name = str(posted.get("name", ""))
    try:
        datasets.rename(db, dataset_id, name)
    except (ConflictError, InvalidError) as error:
        context = dataset_view.build_context(
            db, config, datasets.get(db, dataset_id), DatasetQuery()
        )
        return refused_form(
            request, "datasets/show.html", **context | {"name": name, "problem": error}
        )
    return redirect(request, f"/datasets/{dataset_id}")


@router.post("/{dataset_id}/delete")
def delete(request: Request, dataset_id: DatasetId, db: DB, config: Config) -> Response:
    datasets.delete(db, config.datasets, dataset_id)
    return redirect(request, "/datasets")


def _url_after_exclusion(dataset_id: int, result: BuildResult, previous_version: int | None) -> str:
    """Return the dataset's page, with a notice unless a task still excludes the rows."""
    notice = "same" if not result.is_new else f"out&before={previous_version}"
    return f"/datasets/{dataset_id}" + ("" if result.chore else f"?told={notice}")
