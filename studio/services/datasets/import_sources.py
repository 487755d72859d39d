"""Data from elsewhere: which sources this studio has, and how a file of one becomes a data set.

Whatever it is, a `fetch` chore brings it; then it is a draft, and a person says how to read it.
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
from studio.intake.conversion.detection_result import DETECTION_RESULT_ADAPTER
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
"""How much of one folder is listed."""


_NO_FOLDER = (
    "No folder of this machine is open for this. The operator opens some: STUDIO_IMPORT_FOLDERS."
)
_NO_S3 = "A package for S3 is missing. The operator installs it: pip install 'mantissa-studio[s3]'"
_NO_HUB = (
    "The training packages are missing. The operator installs them: "
    "pip install 'mantissa-studio[train]'"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOption:
    """One way to bring data."""

    kind: str
    title: str
    missing: str = ""
    """What keeps it from working here, and how that is changed; nothing if it works."""


@dataclass(frozen=True, slots=True)
class FolderEntry:
    """What is in a folder that may be read."""

    name: str
    path: str
    size: int | None = None
    """None for a folder."""


def list_sources(settings: Settings) -> list[SourceOption]:
    """Return every way to bring data, and what keeps one from working."""
    folder = "" if settings.import_folders else _NO_FOLDER
    s3 = "" if find_spec("s3fs") else _NO_S3
    hub = "" if find_spec("datasets") else _NO_HUB
    return [
        SourceOption(kind="upload", title="Upload"),
        SourceOption(kind="path", title="Folder", missing=folder),
        SourceOption(kind="url", title="URL"),
        SourceOption(kind="hub", title="Hugging Face", missing=hub),
        SourceOption(kind="s3", title="S3", missing=s3),
    ]


def enqueue_import(db: Session, settings: Settings, source: Source, name: str = "") -> Task:
    """Have a file fetched, and made a data set that waits for a person to say how to read it.

    Raises:
        ConflictError: the name is taken; or a file that was sent has not come whole.
        InvalidError: the source cannot be, or may not be read.
        NotFoundError: nothing was sent under this number.
        UnavailableError: what it needs is not installed here.

    """
    offer = next(one for one in list_sources(settings) if one.kind == source.kind)
    if offer.missing:
        raise UnavailableError(f"{offer.title} cannot be used here.", hint=offer.missing)
    _check_source(settings, source)
    if name:
        name = datasets.available_name(db, datasets.clean_name(name))
    errand = FetchRequest(
        source=source,
        about=_describe_source(settings, source),
        name=name,
        home=settings.datasets,
        limits=FetchLimits(bytes=settings.upload_limit_bytes, row_bytes=settings.line_limit_bytes),
    )
    params = errand.model_dump(mode="json")
    known = hashlib.sha256(source.model_dump_json().encode()).hexdigest()[:12]
    return tasks.enqueue(db, KIND, f"import:{known}", params)


def on_task_end(db: Session, chore: Task, result: dict[str, Any]) -> None:
    """Make a data set of what was fetched: a draft."""
    if not result:
        return
    errand, fetched = FetchRequest.model_validate(chore.params), FetchResult.model_validate(result)
    folder = TaskDir(errand.home.parent / "chores" / str(chore.id))
    filename = datasets.clean_filename(fetched.filename)
    upload = Upload(
        path=folder.files / fetched.file,
        filename=filename,
        name=_available_name(db, errand.name),
        source=_source_text(errand.source, fetched),
        is_draft=True,
        limits=limits.Limits(row_bytes=errand.limits.row_bytes, total_bytes=errand.limits.bytes),
        sha256=fetched.sha256,
        arrival=DETECTION_RESULT_ADAPTER.validate_python(fetched.arrival),
    )
    dataset = dataset_builds.import_file(db, errand.home, upload)
    chore.result = result | {"dataset_id": dataset.id}
    # An address may hold a key to what is behind it, and is not needed any more.
    chore.params = {}


def list_unfinished(db: Session) -> Sequence[Task]:
    """Return what is being fetched, newest first."""
    states = (TaskStatus.QUEUED, TaskStatus.RUNNING)
    query = select(Task).where(Task.kind == KIND, col(Task.status).in_(states))
    return db.exec(query.order_by(col(Task.id).desc())).all()


def list_folder(settings: Settings, path: str = "") -> list[FolderEntry]:
    """Return what is in a folder that may be read: folders first. Without a path, these folders.

    Raises:
        InvalidError: it leads out of them, or is no folder.

    """
    if not path:
        return [FolderEntry(str(one), str(one)) for one in settings.import_folders if one.is_dir()]
    folder = resolve_inside(settings.import_folders, path)
    if not folder.is_dir():
        raise InvalidError(f"{folder.name} is no folder.", param="path")
    found = (_entry(settings, one) for one in sorted(folder.iterdir())[:MAX_ENTRIES])
    return sorted((one for one in found if one), key=lambda one: one.size is not None)


def parent_folder(settings: Settings, path: str) -> str:
    """Return the folder that a folder is in, as far as that may be read; else nothing."""
    folder = resolve_inside(settings.import_folders, path)
    opened = {one.resolve() for one in settings.import_folders}
    return "" if folder in opened else str(folder.parent)


def _entry(settings: Settings, one: Path) -> FolderEntry | None:
    """Return how an entry is listed: not at all if it is hidden, or leads where nobody may read."""
    if one.name.startswith("."):
        return None
    try:
        real = resolve_inside(settings.import_folders, str(one))
        return FolderEntry(one.name, str(one), None if real.is_dir() else real.stat().st_size)
    except (InvalidError, OSError):
        return None


def _check_source(settings: Settings, source: Source) -> None:
    match source:
        case LocalFileSource(path=path):
            if not resolve_inside(settings.import_folders, path).is_file():
                raise InvalidError("This is no file.", hint="Choose a file in it.", param="path")
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


def _check_spelling(text: str, pattern: str, shown: str, param: str) -> None:
    if not re.fullmatch(pattern, text):
        raise InvalidError(f"{text[:100] or 'Nothing'} is not written {shown}.", param=param)


def _check_complete(parts: PartialUpload) -> None:
    if not parts.is_whole:
        raise ConflictError(
            f"Of {parts.filename}, {parts.offset} of {parts.size} bytes have come.",
            hint="Send the rest first.",
        )


def _available_name(db: Session, name: str) -> str:
    """Return the name, or one like it: it may have been taken since it was asked for."""
    return datasets.available_name(db, name, is_chosen=False) if name else ""


def _source_text(source: Source, fetched: FetchResult) -> str:
    commit = fetched.facts.get("commit")
    return f"{source.display_name}@{commit}" if commit else source.display_name
