"""Restore a backup into a home: verified completely first, then switched atomically.

    .restoring/    being filled and verified; if interrupted here, the home is unchanged
    .restored/     one rename later: committed. The next process that opens the home continues
        new/       the restored files; renamed to in/ once all existing files are in old/
        old/       the previous files; stays in the home as replaced-<time>/

Everything happens inside the home, which may be a mount point and then cannot be renamed.
"""

import os
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from sqlalchemy import column, delete, inspect, table, update

from studio.db import migrate
from studio.db.session import open_engine, unit_of_work
from studio.db.states import LIVE, RunStatus
from studio.errors import ConflictError, DiskFullError, InvalidError
from studio.services.operations.backup_format import (
    DATABASE,
    BackupManifest,
    OpenBackup,
    ProgressCallback,
    copy_file,
)
from studio.services.storage import atomic_dirs, locks

_RESTORING = ".restoring"
_RESTORED = ".restored"
_REPLACED = "replaced-"
_EXCLUDED = locks.LOCK_FILES | {"lost+found", "secret_key"}
_SPARE_BYTES = 64 * 2**20
"""Free space to keep for the studio after a restore."""


def restore(source: OpenBackup, home: Path, *, force: bool, on_progress: ProgressCallback) -> None:
    """Fill a home from a backup. Existing files move to a folder inside it; none is deleted.

    Raises:
        ConflictError: The home is in use, or is not empty and `force` is not given.
        DiskFullError: The disk is full.
        InvalidError: The backup is damaged or incomplete.
        UnavailableError: The folder is not writable, or a newer studio made the backup.

    """
    migrate.reject_newer_version(source.manifest.revision)
    share = locks.HomeLock(home)
    try:
        with share.exclusive():
            if is_interrupted(home):
                finish(home)
            _require_empty(home, force=force)
            _require_room(home, source.manifest)
            _copy_and_verify(home, source, on_progress)
            finish(home)
    finally:
        share.close()


def is_interrupted(home: Path) -> bool:
    """Return whether a committed restore has not been finished."""
    return (home / _RESTORED).exists()


def finish(home: Path) -> None:
    """Finish a committed restore, wherever it was interrupted."""
    decided = home / _RESTORED
    if (decided / "new").exists():
        for path in _content(home):
            path.replace(decided / "old" / path.name)
        (decided / "new").replace(decided / "in")
    if (decided / "in").exists():
        for path in (decided / "in").iterdir():
            path.replace(home / path.name)
        (decided / "in").rmdir()
    old = decided / "old"
    if old.exists() and any(old.iterdir()):
        old.replace(home / f"{_REPLACED}{datetime.now(UTC):%Y%m%dT%H%M%S%fZ}")
    shutil.rmtree(decided)


def cleanup(home: Path) -> None:
    """Remove what an interrupted restore left before its commit."""
    shutil.rmtree(home / _RESTORING, ignore_errors=True)


def list_replaced(home: Path) -> list[Path]:
    """Return the folders with files replaced by restores, oldest first."""
    return sorted(home.glob(f"{_REPLACED}*"))


def _content(home: Path) -> Iterator[Path]:
    """Yield the entries of a home, or of any other folder."""
    for path in sorted(home.iterdir()):
        if path.name not in _EXCLUDED and not path.name.startswith((_REPLACED, _RESTORED)):
            yield path


def _require_empty(home: Path, *, force: bool) -> None:
    cleanup(home)
    content = [path.name for path in _content(home)]
    if content and not force:
        raise ConflictError(
            f"{home} is not empty.",
            hint="Choose another folder with --into, or use --force to move its content aside.",
        )
    if content and DATABASE not in content:
        raise ConflictError(
            f"{home} is not a studio's home, and {content[0]} in it would be moved.",
            hint="Choose another folder with --into.",
        )


def _require_room(home: Path, manifest: BackupManifest) -> None:
    free = shutil.disk_usage(home).free
    if manifest.bytes + _SPARE_BYTES > free:
        raise DiskFullError(
            f"The backup needs {manifest.bytes / 10**9:.1f} GB, "
            f"but {home} has only {free / 10**9:.1f} GB free.",
            hint="Free some space, or choose another disk with --into.",
        )


def _copy_and_verify(home: Path, source: OpenBackup, on_progress: ProgressCallback) -> None:
    """Copy and verify all files, then commit."""
    with atomic_dirs.staging_dir(home, _RESTORING) as stage:
        (stage / "old").mkdir()
        for name, entry in source.manifest.files.items():
            path = stage / "new" / name
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with source.open(name) as file, path.open("xb") as target:
                if copy_file(file, target, entry.bytes + 1, on_progress) != entry:
                    raise InvalidError(
                        f"The checksum of {name} in the backup is wrong.",
                        hint="Nothing was changed. Try another copy of the backup.",
                    )
        _forget_processes(stage / "new" / DATABASE)
        os.sync()
        stage.replace(home / _RESTORED)
        os.sync()


_RUN = table("run", *map(column, ("status", "handle", "lease_until", "pid", "pid_started")))
"""The columns that a run had in any version."""

_PROCESS: dict[str, dict[str, object]] = {
    "handle": {"handle": "", "lease_until": None},
    "pid": {"pid": None, "pid_started": None},
}
"""Values that clear a run's process, by the column that names it, now or in older versions."""

_LIVE = [status.value for status in LIVE]


def _forget_processes(database: Path) -> None:
    """Clear the process ids of runs: on this machine they belong to other processes.

    Runs that were training when the backup was made are paused until a user resumes them.
    """
    migrate.verify(database)
    engine = open_engine(database)
    try:
        revision = migrate.current_version(engine)
        if revision is None:
            raise InvalidError(
                "The database in the backup is empty.", hint="Try another copy of the backup."
            )
        migrate.reject_newer_version(revision)
        with unit_of_work(engine) as db:
            connection = db.connection()
            column_names = {
                column_info["name"] for column_info in inspect(connection).get_columns("run")
            }
            for name, cleared_values in _PROCESS.items():
                if name in column_names:
                    connection.execute(update(_RUN).values(cleared_values))
            paused = update(_RUN).where(_RUN.c.status.in_(_LIVE))
            connection.execute(paused.values(status=RunStatus.PAUSED.value))
            connection.execute(delete(table("worker")))
    finally:
        engine.dispose()
