"""Pages of datasets: import, list, show, rename, delete, versions, findings and downloads."""

from collections.abc import Mapping as Values
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from fastapi import APIRouter, Form, Path, Query, Request
from fastapi.responses import FileResponse, Response
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from sqlmodel import Session

from studio.data_sources import SOURCE_ADAPTER, Source
from studio.db.states import DatasetStatus
from studio.db.tables import Dataset, DatasetVersion
from studio.db.tasks import Task
from studio.errors import ConflictError, InvalidError, NotFoundError, StudioError, UnavailableError
from studio.intake import mapping_text
from studio.intake.conversion import file_preview
from studio.intake.files.formats import ACCEPTED_EXTENSIONS, SUPPORTED_FORMATS
from studio.intake.mapping import Mapping
from studio.intake.quality.answer_facts import AnswerFacts
from studio.intake.quality.findings import MAX_LISTED_ROWS
from studio.intake.readers.file_reader import ROW_UNITS
from studio.intake.row_formats.message_formats import to_text
from studio.intake.rows.paging import Page
from studio.intake.rows.pipeline import EXCLUSION_REASONS
from studio.services.datasets import (
    data_quality,
    dataset_builds,
    datasets,
    import_sources,
    pending_datasets,
    versions,
)
from studio.services.datasets.data_quality import FindingRef
from studio.services.datasets.dataset_builds import BuildResult
from studio.services.datasets.import_sources import FolderEntry, SourceOption
from studio.services.datasets.versions import Part, RowQuery
from studio.services.feedback import feedback, feedback_datasets
from studio.services.tasks import tasks
from studio.settings import Settings
from studio.starter.samples import SAMPLES, SampleName
from studio.web.datasets import mapping_view
from studio.web.http.deps import DB, Config, PostedForm, ReadDB
from studio.web.http.multipart_upload import NewUpload, read_limits
from studio.web.queue.queue_page import TaskId
from studio.web.rendering.render import page, redirect, refused_form

router = APIRouter(prefix="/datasets", include_in_schema=False)


_FORM_ERRORS = (ConflictError, InvalidError, NotFoundError, UnavailableError)
UPLOAD = "upload"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportForm:
    options: list[SourceOption]
    kind: str
    """Kind of the chosen source."""
    folder: str
    """Folder that is listed."""
    parent_folder: str
    entries: list[FolderEntry]
    pending_tasks: Sequence[Task]
    values: Values[str, str] = field(default_factory=dict)
    """The posted values, if they were invalid."""

    @property
    def samples(self) -> dict[SampleName, str]:
        """The included samples, and what their rows are."""
        return SAMPLES

    @property
    def selected(self) -> SourceOption:
        return next(option for option in self.options if option.kind == self.kind)

    def value(self, name: str) -> str:
        return self.values.get(name, "")


def build_form(
    db: Session,
    config: Settings,
    way: str = UPLOAD,
    at: str = "",
    values: Values[str, str] | None = None,
) -> ImportForm:
    """Return the import form with one source chosen."""
    options = import_sources.list_sources(config)
    selected = way if way in {option.kind for option in options} else UPLOAD
    is_folder_source = selected == "path" and bool(config.import_folders)
    return ImportForm(
        options=options,
        kind=selected,
        folder=at if is_folder_source else "",
        parent_folder=import_sources.parent_folder(config, at) if is_folder_source and at else "",
        entries=import_sources.list_folder(config, at) if is_folder_source else [],
        pending_tasks=import_sources.list_unfinished(db),
        values=values or {},
    )


def parse_source(posted: Values[str, Any]) -> Source:
    """Return the source that a posted form describes.

    Raises:
        InvalidError: a field is missing or invalid.

    """
    fields = {name: str(value) for name, value in posted.items() if name != "name" and value}
    try:
        return SOURCE_ADAPTER.validate_python(fields)
    except ValidationError as error:
        first = error.errors()[0]
        param = str(first["loc"][-1]) if first["loc"] else ""
        raise InvalidError("This field is required.", param=param) from error


@router.post("/imports")
def start_import(request: Request, posted: PostedForm, db: DB, config: Config) -> Response:
    """Queue an import and redirect to its progress."""
    name = str(posted.get("name", ""))
    try:
        task = import_sources.enqueue_import(db, config, parse_source(posted), name)
    except _FORM_ERRORS as error:
        context: dict[str, Any] = list_context(db, config, name=name, problem=error)
        kind = str(posted.get("kind", ""))
        form_context = context | {"bring": build_form(db, config, kind, values=posted)}
        return refused_form(request, "datasets/list.html", **form_context)
    return redirect(request, f"/chores/{task.id}?then=/datasets/imports/{task.id}/done")


@router.get("/imports/{chore_id}/done")
def show_imported(request: Request, chore_id: TaskId, db: DB) -> Response:
    """Redirect to the dataset that an import task created."""
    dataset_id = tasks.get(db, chore_id).result.get("dataset_id")
    return redirect(request, f"/datasets/{dataset_id}" if dataset_id else "/datasets")


def list_context(
    db: Session, config: Settings, *, name: str = "", problem: StudioError | None = None
) -> dict[str, Any]:
    """Return the template context of the dataset list."""
    listed_datasets = datasets.newest(db)
    current = versions.current_by_dataset(db, listed_datasets)
    return {
        "accepted": ACCEPTED_EXTENSIONS,
        "formats": SUPPORTED_FORMATS,
        "datasets": listed_datasets,
        "versions": current,
        "words": {
            number: mapping_text.describe_mapping(Mapping.model_validate(version.mapping))
            for number, version in current.items()
        },
        "bring": build_form(db, config),
        "limit": config.upload_limit_bytes,
        "feedback": feedback.count_by_kind(db),
        "name": name,
        "problem": problem,
    }


PAGE_ROWS = 10
"""Rows per page; a long row is folded to a few lines."""
_SHORT_TEXT, _SHORT_LINES, _SHORT_TURNS = 200, 3, 4
_MAX_ROW_NUMBERS = 100
"""Most row numbers that one query may name."""


class DatasetQuery(BaseModel):
    """The query parameters of a dataset's page."""

    model_config = ConfigDict(extra="ignore")

    version: int | None = Field(default=None, ge=1, lt=2**31)
    split: Part = "train"
    after: int = Field(default=0, ge=0, lt=2**53)
    q: str = Field(default="", max_length=200)
    rows: str = Field(default="", max_length=2000)
    """Row numbers as the version counts them."""
    finding: str = Field(default="", max_length=50)
    """Show only the rows with a finding of this code."""
    original: str = Field(default="", max_length=2000)
    """Row numbers as the file counts them."""
    told: str = ""
    """`same`: the requested mapping gave rows that a version already had; `out`: it excluded
    some."""
    before: int | None = Field(default=None, ge=1, lt=2**31)
    """The version in use before that change."""

    def row_selection(self) -> RowQuery:
        return RowQuery(
            part=self.split,
            after=self.after,
            words=self.q.strip(),
            numbers=_parse_numbers(self.rows),
            finding=self.finding,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionEntry:
    """A version in the version list."""

    version: DatasetVersion
    changes: list[str]
    """How its mapping differs from that of the version before."""
    runs: int


def _method_uses(version: DatasetVersion, mapping: Mapping) -> list[mapping_view.MethodUse]:
    facts = None if version.answers is None else AnswerFacts(**version.answers)
    return mapping_view.method_uses(mapping, facts)


def build_context(
    db: Session, config: Settings, dataset: Dataset, query: DatasetQuery
) -> dict[str, Any]:
    """Return the template context of a dataset's page."""
    number = query.version or dataset.version
    version = versions.get(db, dataset.id or 0, number) if number else None
    all_versions = versions.list_versions(db, dataset.id or 0)
    mapping = Mapping.model_validate(version.mapping) if version else None
    row_query, folder = query.row_selection(), config.datasets
    rows = versions.load_rows(folder, version, row_query, limit=PAGE_ROWS) if version else None
    rows = rows or Page(rows=[], has_more=False)
    return {
        "dataset": dataset,
        "version": version,
        "entries": _version_entries(all_versions, versions.count_runs(db, dataset.id or 0)),
        "words": mapping_text.describe_mapping(mapping) if mapping else "",
        "split_words": mapping_text.describe_split(mapping.split) if mapping else "",
        "uses": _method_uses(version, mapping) if version and mapping else [],
        "reasons": EXCLUSION_REASONS,
        "place": ROW_UNITS.get(dataset.format, "row"),
        "query": query,
        "rows": rows,
        "page_size": PAGE_ROWS,
        "folded": {entry.number for entry in rows.rows if is_long(entry.row)},
        "spots": data_quality.locate_spans(folder, version, row_query, rows) if version else {},
        "original": _original_rows(config, dataset, query, mapping),
        "chore": dataset_builds.latest_task(db, dataset.id or 0),
        "can_edit": _can_edit(config, dataset),
        "is_feedback": dataset.source in feedback_datasets.SOURCES.values(),
        "findings": _quality_findings(version, mapping) if version and mapping else None,
        "kept": MAX_LISTED_ROWS,
        "looking": data_quality.latest_scan(db, version)
        if version and version.findings is None
        else None,
        "name": dataset.name,
        "problem": None,
    }


def is_long(row: Values[str, Any]) -> bool:
    """Whether a row has more to show than the few lines that the list gives it."""
    turns = [turn for name in ("messages", "chosen", "rejected") for turn in row.get(name, ())]
    texts = [
        row.get("text", ""),
        *row.get("steps", ()),
        *map(to_text, row.get("item", {}).values()),
        *(row.get("anchor", ""), row.get("positive", ""), *row.get("negatives", ())),
        *(turn.get("content") or "" for turn in turns),
    ]
    is_long_text = any(
        len(text) > _SHORT_TEXT or text.count("\n") >= _SHORT_LINES for text in texts
    )
    count = len(turns) + len(row.get("steps", ())) + len(row.get("item", ()))
    return is_long_text or count > _SHORT_TURNS or any("tool_calls" in turn for turn in turns)


def _version_entries(
    dataset_versions: Sequence[DatasetVersion], run_counts: dict[int, int]
) -> list[VersionEntry]:
    """List versions, newest first, each with its changes from the one before."""
    mappings = [Mapping.model_validate(version.mapping) for version in dataset_versions]
    previous_mappings = [*mappings, None][1:]
    return [
        VersionEntry(
            version=version,
            changes=mapping_text.describe_changes(old, new)
            if old
            else [f"{mapping_text.describe_mapping(new)}."],
            runs=run_counts.get(version.number, 0),
        )
        for version, new, old in zip(dataset_versions, mappings, previous_mappings, strict=True)
    ]


def _quality_findings(version: DatasetVersion, mapping: Mapping) -> list[dict[str, Any]] | None:
    """Return the findings with the actions they allow; None before the first data check."""
    if version.findings is None:
        return None
    return [
        finding
        | {
            "is_repeated": finding["code"] in data_quality.DUPLICATE_CODES,
            "can_leave_out": data_quality.can_exclude(mapping, finding),
        }
        for finding in version.findings
    ]


def _original_rows(
    config: Settings, dataset: Dataset, query: DatasetQuery, mapping: Mapping | None
) -> dict[str, Any] | None:
    """Return the requested rows as they are in the uploaded file."""
    numbers = _parse_numbers(query.original)
    if not numbers:
        return None
    source = pending_datasets.original_source(config.datasets, dataset)
    source = replace(source, options=mapping.file) if mapping else source
    if query.split == "validation":
        source = pending_datasets.validation_source(config.datasets, dataset) or source
    result = file_preview.find_rows(source, read_limits(config), numbers)
    rows = [
        {
            "place": row.place,
            "cells": {
                name: file_preview.shorten_value(value, 2000) for name, value in row.values.items()
            },
        }
        for row in result.rows
    ]
    return {"rows": rows, "looked_to": result.searched_to}


def _can_edit(config: Settings, dataset: Dataset) -> bool:
    try:
        pending_datasets.original_source(config.datasets, dataset)
    except InvalidError:
        return False
    return True


def _parse_numbers(text: str) -> frozenset[int]:
    parts = [part.strip() for part in text.split(",")][:_MAX_ROW_NUMBERS]
    return frozenset(
        int(part)
        for part in parts
        if part.isdecimal() and len(part) < 16  # noqa: PLR2004 -- no file has more rows
    )


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
    way: ImportKind = UPLOAD,
    at: FolderPath = "",
) -> Response:
    form_context = {"bring": build_form(db, config, way, at)}
    return page(request, "datasets/list.html", **list_context(db, config) | form_context)


@router.post("")
def add(request: Request, upload: NewUpload, db: DB, config: Config) -> Response:
    """Save an uploaded file as a draft, then ask for its mapping."""
    try:
        dataset = dataset_builds.import_file(db, config.datasets, replace(upload, is_draft=True))
    except (ConflictError, InvalidError) as error:
        context = list_context(db, config, name=upload.name, problem=error)
        return refused_form(request, "datasets/list.html", **context)
    return redirect(request, f"/datasets/{dataset.id}")


@router.get("/{dataset_id}")
def show(
    request: Request,
    dataset_id: DatasetId,
    db: DB,
    config: Config,
    query: Annotated[DatasetQuery, Query()],
) -> Response:
    """Show a dataset, or its mapping form if it has no version yet."""
    dataset = datasets.get(db, dataset_id)
    if dataset.version is None and dataset.status is not DatasetStatus.BUILDING:
        return redirect(request, f"/datasets/{dataset_id}/mapping")
    return page(request, "datasets/show.html", **build_context(db, config, dataset, query))


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
        context = build_context(db, config, datasets.get(db, dataset_id), DatasetQuery())
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
