"""The list of datasets and its import form: queue the task, then open the dataset it created."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import ValidationError
from sqlmodel import Session

from studio.data_sources import SOURCE_ADAPTER, Source
from studio.db.tasks import Task
from studio.errors import ConflictError, InvalidError, NotFoundError, StudioError, UnavailableError
from studio.intake import mapping_text
from studio.intake.files.formats import ACCEPTED_EXTENSIONS, SUPPORTED_FORMATS
from studio.intake.mapping import Mapping as ColumnMapping
from studio.services.datasets import datasets, import_sources, versions
from studio.services.datasets.import_sources import FolderEntry, SourceOption
from studio.services.tasks import tasks
from studio.settings import Settings
from studio.web.http.deps import DB, Config, PostedForm
from studio.web.queue.queue_page import TaskId
from studio.web.rendering.render import redirect, refused_form

router = APIRouter(prefix="/datasets/imports", include_in_schema=False)

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
    values: Mapping[str, str] = field(default_factory=dict)
    """The posted values, if they were invalid."""

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
    values: Mapping[str, str] | None = None,
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


def parse_source(posted: Mapping[str, Any]) -> Source:
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


@router.post("")
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


@router.get("/{chore_id}/done")
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
            number: mapping_text.describe_mapping(ColumnMapping.model_validate(version.mapping))
            for number, version in current.items()
        },
        "bring": build_form(db, config),
        "limit": config.upload_limit_bytes,
        "name": name,
        "problem": problem,
    }
