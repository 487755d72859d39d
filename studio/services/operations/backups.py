"""Back up a home while the studio runs: the database first, then the files of its rows.

This order ensures that every row has its files. Later changes are not in the backup: a run that was
training is, in the backup, a run interrupted at the moment of the database snapshot.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

from sqlalchemy import Engine
from sqlmodel import select

import studio
from studio.db import migrate
from studio.db.session import open_engine, read_session
from studio.db.tables import Dataset, Run
from studio.errors import ConflictError, DiskFullError, InvalidError, NotFoundError
from studio.services.operations import backup_format
from studio.services.operations.backup_format import (
    DATABASE,
    MANIFEST,
    BackupEntry,
    BackupManifest,
    FileOpener,
    ProgressCallback,
)
from studio.services.storage import atomic_dirs, locks
from studio.settings import Settings

_KEYS = ("api_token", "secret_key")
_EXCLUDED_PREFIXES = (
    DATABASE,
    migrate.BACKUPS,
    "replaced-",
    "lost+found",
    *_KEYS,
    *locks.LOCK_FILES,
)
_TEMPORARY_PREFIXES = (".new-", ".gone-", ".restor")
_LOG = "events.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupOptions:
    """What a backup includes besides the database, and its format."""

    models: bool = True
    checkpoints: bool = True
    packed: bool = True
    """One zip file instead of a folder."""

    @property
    def left_out(self) -> list[str]:
        included = {"models": self.models, "checkpoints": self.checkpoints}
        return [name for name, is_wanted in included.items() if not is_wanted]


def require_file(settings: Settings) -> None:
    """Refuse to back up or restore a database that is not in the home.

    Raises:
        InvalidError: It is on a server.

    """
    if settings.database.get_secret_value():
        raise InvalidError(
            "This studio's database is on a server, so the studio cannot back it up or restore it.",
            hint=f"Use pg_dump and pg_restore for it, and copy {settings.home} as well.",
        )


def estimate_bytes(settings: Settings, options: BackupOptions) -> int:
    """Return the approximate size of a backup in bytes, before compression."""
    database = settings.database_file.stat().st_size if settings.database_file.exists() else 0
    sizes = 0
    for path in _files(settings.home, options):
        with suppress(FileNotFoundError):
            sizes += path.stat().st_size
    return sizes + database


def create(
    settings: Settings, destination: Path, options: BackupOptions, on_progress: ProgressCallback
) -> BackupManifest:
    """Write a backup next to its destination, then move it into place. The studio may keep running.

    Raises:
        ConflictError: The destination exists, or rows were deleted during the backup.
        DiskFullError: The disk is full.
        InvalidError: The destination is inside the home, or the database is on a server.
        NotFoundError: There is no studio in this home.

    """
    destination = destination.expanduser().absolute()
    _check(settings, destination, options)
    share = locks.HomeLock(settings.home)
    engine = open_engine(settings.database_file)
    try:
        with _staging_dir(destination) as stage:
            manifest = _write(engine, settings.home, stage, options, on_progress)
            os.sync()
            result = backup_format.zip_path(stage) if options.packed else stage
            result.replace(destination)
    finally:
        engine.dispose()
        share.close()
    return manifest


def _check(settings: Settings, destination: Path, options: BackupOptions) -> None:
    if not settings.database_file.exists():
        raise NotFoundError(
            f"There is no studio in {settings.home}.",
            hint="Set STUDIO_HOME to the studio's folder.",
        )
    if destination.exists():
        raise ConflictError(f"{destination} already exists.", hint="Choose another name.")
    if destination.is_relative_to(settings.home):
        raise InvalidError(
            "A backup inside the studio's home would be lost together with it.",
            hint="Choose a place outside the home, ideally on another disk.",
        )
    needed, free = estimate_bytes(settings, options), backup_format.free_bytes(destination.parent)
    if needed > free:
        raise DiskFullError(
            f"The backup may need {needed / 10**9:.1f} GB, "
            f"but {destination.parent} has only {free / 10**9:.1f} GB free.",
            hint="Choose another disk, or exclude large files: --no-models --no-checkpoints.",
        )


@contextmanager
def _staging_dir(destination: Path) -> Iterator[Path]:
    stage = destination.with_name(f".new-{uuid4().hex}")
    try:
        with locks.explain_os_errors(destination.parent):
            destination.parent.mkdir(parents=True, exist_ok=True)
            stage.mkdir(mode=0o700)
        with atomic_dirs.explain_disk_full():
            yield stage
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def _write(
    engine: Engine, home: Path, stage: Path, options: BackupOptions, on_progress: ProgressCallback
) -> BackupManifest:
    database = stage / f".{DATABASE}"
    migrate.create(engine, database)
    with backup_format.open_for_writing(stage, packed=options.packed) as open_file:
        files = {DATABASE: _copy(database, DATABASE, open_file, on_progress)}
        for path in _files(home, options):
            name = path.relative_to(home).as_posix()
            # Temporary and deleted files may vanish meanwhile; `_require_unchanged` checks rows.
            with suppress(FileNotFoundError):
                files[name] = _copy(path, name, open_file, on_progress)
        _require_unchanged(engine, database)
        manifest = BackupManifest(
            studio=studio.__version__,
            revision=migrate.current_version(engine) or "",
            made_at=datetime.now(UTC),
            left_out=options.left_out,
            files=files,
        )
        with open_file(MANIFEST) as file:
            file.write(manifest.model_dump_json(indent=1).encode())
    database.unlink()
    return manifest


def _copy(
    path: Path, name: str, open_file: FileOpener, on_progress: ProgressCallback
) -> BackupEntry:
    # Copy the current size only: logs may still grow.
    with path.open("rb") as file, open_file(name) as target:
        return backup_format.copy_file(file, target, os.fstat(file.fileno()).st_size, on_progress)


def _files(home: Path, options: BackupOptions) -> Iterator[Path]:
    for path in sorted(home.iterdir()):
        if (
            not path.name.startswith((*_EXCLUDED_PREFIXES, *_TEMPORARY_PREFIXES))
            and path.name not in options.left_out
        ):
            yield from _walk(path, options)


def _walk(path: Path, options: BackupOptions) -> Iterator[Path]:
    """Yield the files of a folder; a run's log first, so that all files it mentions follow."""
    if path.is_file():
        yield path
        return
    if not path.is_dir():
        return
    log = path / _LOG
    if log.is_file():
        yield log
    with suppress(FileNotFoundError):
        for inner in sorted(path.iterdir()):
            is_half_made = inner.name.startswith(_TEMPORARY_PREFIXES) or inner.name.endswith(
                ".partial"
            )
            is_left_out = inner.name == "checkpoints" and not options.checkpoints
            if not (inner == log or inner.is_symlink() or is_half_made or is_left_out):
                yield from _walk(inner, options)


def _require_unchanged(engine: Engine, database: Path) -> None:
    """Refuse a backup of rows whose files may have been deleted during the copy."""
    copy = open_engine(database)
    try:
        missing = _row_names(copy) - _row_names(engine)
    finally:
        copy.dispose()
    if missing:
        raise ConflictError(
            f"{min(missing)} was deleted during the backup.", hint="Run the backup again."
        )


def _row_names(engine: Engine) -> set[str]:
    with read_session(engine) as db:
        ids_by_noun = {
            "Run": db.exec(select(Run.id)).all(),
            "Dataset": db.exec(select(Dataset.id)).all(),
        }
    return {f"{noun} {number}" for noun, numbers in ids_by_noun.items() for number in numbers}
