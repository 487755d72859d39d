"""Import data from other places: the available sources, and how a file becomes a dataset.

A `fetch` task downloads the file. The result is a draft, and the user confirms its mapping.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from sqlmodel import Session, col, select

from studio.data_sources import (
    REPO_ID,
    S3_URL,
    FetchLimits,
    FetchRequest,
    FetchResult,
    HubDatasetSource,
    LocalFileSource,
    S3Source,
    Source,
    UploadSource,
    UrlSource,
    resolve_inside,
)
from studio.db.states import TaskStatus
from studio.db.tasks import Task
from studio.errors import ConflictError, InvalidError, UnavailableError
from studio.intake.conversion.job import DETECTION_RESULT_ADAPTER
from studio.intake.files import limits
from studio.network import safe_http
from studio.protocols.tasks import TaskDir
from studio.services.datasets import dataset_builds, datasets, uploads
from studio.services.datasets.pending_datasets import Upload
from studio.services.datasets.uploads import PartialUpload
from studio.services.tasks import tasks
from studio.settings import Settings

KIND = "fetch"
MAX_ENTRIES = 500
"""Most entries of one folder that are listed."""


_NO_FOLDER = "No server folders are shared. An administrator can set STUDIO_IMPORT_FOLDERS."
_NO_S3 = "The S3 package is not installed. Run: pip install 'mantissa-studio[s3]'"
_NO_HUB = "The training packages are not installed. Run: pip install 'mantissa-studio[train]'"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOption:
    """A place to import data from."""

    kind: str
    title: str
    missing: str = ""
    """Why it is not available here and how to change that; empty if it is available."""


@dataclass(frozen=True, slots=True)
class FolderEntry:
    """An entry of a folder that users may read."""

    name: str
    path: str
    size: int | None = None
    """None for a folder."""


def list_sources(settings: Settings) -> list[SourceOption]:
    """Return every source, and why one is not available."""
    folder = "" if settings.import_folders else _NO_FOLDER
    s3 = "" if find_spec("s3fs") else _NO_S3
    hub = "" if find_spec("datasets") else _NO_HUB
    return [
        SourceOption(kind="upload", title="Upload"),
        SourceOption(kind="path", title="Folder", missing=folder),
        SourceOption(kind="url", title="URL"),
        SourceOption(kind="hub", title="Hugging Face", missing=hub),
        SourceOption(kind="s3", title="S3", missing=s3),
        SourceOption(kind="sample", title="Sample data"),
    ]


def enqueue_import(db: Session, settings: Settings, source: Source, name: str = "") -> Task:
    """Queue a task that fetches a file and makes a draft dataset of it.

    Raises:
        ConflictError: The name is taken, or the upload is incomplete.
        InvalidError: The source is invalid, or may not be read.
        NotFoundError: There is no such upload.
        UnavailableError: A package it needs is not installed.

    """
    offer = next(option for option in list_sources(settings) if option.kind == source.kind)
    if offer.missing:
        raise UnavailableError(f"{offer.title} is not available here.", hint=offer.missing)
    _check_source(settings, source)
    if name:
        name = datasets.available_name(db, datasets.clean_name(name))
    request = FetchRequest(
        source=source,
        about=_describe_source(settings, source),
        name=name,
        home=settings.datasets,
        limits=FetchLimits(bytes=settings.upload_limit_bytes, row_bytes=settings.line_limit_bytes),
    )
    params = request.model_dump(mode="json")
    source_hash = hashlib.sha256(source.model_dump_json().encode()).hexdigest()[:12]
    return tasks.enqueue(db, KIND, f"import:{source_hash}", params)


def on_task_end(db: Session, task: Task, result: dict[str, Any]) -> None:
    """Make a draft dataset of the fetched file."""
    if not result:
        return
    request, fetched = FetchRequest.model_validate(task.params), FetchResult.model_validate(result)
    folder = TaskDir(request.home.parent / "chores" / str(task.id))
    filename = datasets.clean_filename(fetched.filename)
    upload = Upload(
        path=folder.files / fetched.file,
        filename=filename,
        name=_available_name(db, request.name),
        source=_source_text(request.source, fetched),
        is_draft=True,
        limits=limits.Limits(row_bytes=request.limits.row_bytes, total_bytes=request.limits.bytes),
        sha256=fetched.sha256,
        arrival=DETECTION_RESULT_ADAPTER.validate_python(fetched.arrival),
    )
    dataset = dataset_builds.import_file(db, request.home, upload)
    task.result = result | {"dataset_id": dataset.id}
    # A URL may contain a secret, and is no longer needed.
    task.params = {}


def list_unfinished(db: Session) -> Sequence[Task]:
    """Return the queued and running imports, newest first."""
    states = (TaskStatus.QUEUED, TaskStatus.RUNNING)
    query = select(Task).where(Task.kind == KIND, col(Task.status).in_(states))
    return db.exec(query.order_by(col(Task.id).desc())).all()


def list_folder(settings: Settings, path: str = "") -> list[FolderEntry]:
    """List a readable folder, subfolders first; without a path, the configured folders.

    Raises:
        InvalidError: The path is outside these folders, or is not a folder.

    """
    if not path:
        return [
            FolderEntry(str(entry), str(entry))
            for entry in settings.import_folders
            if entry.is_dir()
        ]
    folder = resolve_inside(settings.import_folders, path)
    if not folder.is_dir():
        raise InvalidError(f"{folder.name} is not a folder.", param="path")
    entries = (_entry(settings, entry) for entry in sorted(folder.iterdir())[:MAX_ENTRIES])
    return sorted((entry for entry in entries if entry), key=lambda one: one.size is not None)


def parent_folder(settings: Settings, path: str) -> str:
    """Return the parent of a folder, or an empty string if it may not be read."""
    folder = resolve_inside(settings.import_folders, path)
    roots = {root.resolve() for root in settings.import_folders}
    return "" if folder in roots else str(folder.parent)


def _entry(settings: Settings, path: Path) -> FolderEntry | None:
    """Return an entry of a listing; None if it is hidden or leads outside the readable folders."""
    if path.name.startswith("."):
        return None
    try:
        real = resolve_inside(settings.import_folders, str(path))
        return FolderEntry(path.name, str(path), None if real.is_dir() else real.stat().st_size)
    except (InvalidError, OSError):
        return None


def _check_source(settings: Settings, source: Source) -> None:
    match source:
        case LocalFileSource(path=path):
            if not resolve_inside(settings.import_folders, path).is_file():
                raise InvalidError("This is not a file.", hint="Choose a file.", param="path")
        case UrlSource(url=url):
            safe_http.validate_url(url)
        case HubDatasetSource(id=name):
            _check_spelling(name, REPO_ID, "owner/name", "id")
        case S3Source(url=url):
            _check_spelling(url, S3_URL, "s3://bucket/key", "url")
        case UploadSource(upload=upload):
            _check_complete(uploads.get(settings.uploads, upload))


def _describe_source(settings: Settings, source: Source) -> str:
    if isinstance(source, UploadSource):
        return uploads.get(settings.uploads, source.upload).filename
    return source.display_name


def _check_spelling(text: str, pattern: str, form: str, param: str) -> None:
    if not re.fullmatch(pattern, text):
        raise InvalidError(f"{text[:100] or 'Nothing'} does not have the form {form}.", param=param)


def _check_complete(parts: PartialUpload) -> None:
    if not parts.is_whole:
        raise ConflictError(
            f"{parts.filename} is incomplete: {parts.offset} of {parts.size} bytes were uploaded.",
            hint="Upload the rest first.",
        )


def _available_name(db: Session, name: str) -> str:
    """Return the name, or a similar one if it was taken since the import was requested."""
    return datasets.available_name(db, name, is_chosen=False) if name else ""


def _source_text(source: Source, fetched: FetchResult) -> str:
    commit = fetched.facts.get("commit")
    return f"{source.display_name}@{commit}" if commit else source.display_name
