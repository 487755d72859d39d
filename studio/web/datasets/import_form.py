"""The import form of the datasets page: sources, folder listing, unfinished imports."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError
from sqlmodel import Session

from studio.data_sources import SOURCE_ADAPTER, Source
from studio.db.tasks import Task
from studio.errors import InvalidError
from studio.services.datasets import import_sources
from studio.services.datasets.import_sources import FolderEntry, SourceOption
from studio.settings import Settings

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
