"""Bring a backup back into a home: checked whole before anything is touched, then decided at once.

    .restoring/    being filled and checked; whatever breaks off here, the home is as it was
    .restored/     one rename from there: decided. Whoever opens the home next goes on
        new/       what is to come; becomes in/ when all that was there has been moved to old/
        old/       what was there; stays in the home as replaced-<time>/

Everything happens inside the home, which may be a mount point and so cannot be renamed itself.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from sqlalchemy import column, delete, inspect, table, update

from studio.db import migrate, snapshot
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
"""What a studio needs to breathe once a backup has filled the disk."""


def restore(source: OpenBackup, home: Path, *, force: bool, watch: ProgressCallback) -> None:
    """Fill a home from a backup. What it held goes into a folder inside it, and is not deleted.

    Raises:
        ConflictError: the home is in use, or holds something and `force` is not given.
        DiskFullError: there is no room for it.
        InvalidError: the backup is damaged, or a file of it is missing.
        UnavailableError: the folder cannot be written, or a newer studio made the backup.

    """
    migrate.reject_newer_version(source.manifest.revision)
    share = locks.HomeLock(home)
    try:
        with share.exclusive():
            if is_interrupted(home):
                finish(home)
            _require_empty(home, force=force)
            _require_room(home, source.manifest)
            _copy_and_verify(home, source, watch)
            finish(home)
    finally:
        share.close()


def is_interrupted(home: Path) -> bool:
    """Whether a restore was decided here and not carried out to its end."""
    return (home / _RESTORED).exists()


def finish(home: Path) -> None:
    """Carry out what was decided, from wherever it was cut off."""
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
    """Take away what a restore left that was cut off before it was decided."""
    shutil.rmtree(home / _RESTORING, ignore_errors=True)


def list_replaced(home: Path) -> list[Path]:
    """Return what restores have set aside, oldest first."""
    return sorted(home.glob(f"{_REPLACED}*"))


def _content(home: Path) -> Iterator[Path]:
    """Yield what belongs to a studio, or to whatever else lives in a folder."""
    for path in sorted(home.iterdir()):
        if path.name not in _EXCLUDED and not path.name.startswith((_REPLACED, _RESTORED)):
            yield path


def _require_empty(home: Path, *, force: bool) -> None:
    cleanup(home)
    content = [path.name for path in _content(home)]
    if content and not force:
        raise ConflictError(
            f"{home} is not empty.",
            hint="Choose another folder with --into, or --force to set aside what is in this one.",
        )
    if content and DATABASE not in content:
        raise ConflictError(
            f"{home} holds no studio but {content[0]}, which would be moved away.",
            hint="Choose another folder with --into.",
        )


def _require_room(home: Path, manifest: BackupManifest) -> None:
    free = shutil.disk_usage(home).free
    if manifest.bytes + _SPARE_BYTES > free:
        raise DiskFullError(
            f"The backup needs {manifest.bytes / 10**9:.1f} GB, "
            f"and {home} has {free / 10**9:.1f} GB left.",
            hint="Free some space, or choose another disk with --into.",
        )


def _copy_and_verify(home: Path, source: OpenBackup, watch: ProgressCallback) -> None:
    """Copy and check everything, then decide."""
    with _staging_dir(home) as stage:
        (stage / "old").mkdir()
        for name, entry in source.manifest.files.items():
            path = stage / "new" / name
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with source.open(name) as file, path.open("xb") as made:
                if copy_file(file, made, entry.bytes + 1, watch) != entry:
                    raise InvalidError(
                        f"{name} in the backup is not what it was when the backup was made.",
                        hint="Nothing was changed. Try another copy of the backup.",
                    )
        _forget_processes(stage / "new" / DATABASE)
        os.sync()
        stage.replace(home / _RESTORED)
        os.sync()


@contextmanager
def _staging_dir(home: Path) -> Iterator[Path]:
    stage = home / _RESTORING
    try:
        with atomic_dirs.explain_disk_full():
            stage.mkdir(mode=0o700)
            yield stage
    finally:
        shutil.rmtree(stage, ignore_errors=True)


_RUN = table("run", *map(column, ("status", "handle", "lease_until", "pid", "pid_started")))
"""As much of it as any version had."""

_PROCESS: dict[str, dict[str, object]] = {
    "handle": {"handle": "", "lease_until": None},
    "pid": {"pid": None, "pid_started": None},
}
"""How to forget a run's process, by the column that names it: in this version, and in earlier."""

_LIVE = [status.value for status in LIVE]


def _forget_processes(database: Path) -> None:
    """Forget who trained: the process of that number, if there is one, belongs to another home.

    What was training when the backup was made is paused: it goes on when a person says so.
    """
    snapshot.verify(database)
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
            known = {one["name"] for one in inspect(connection).get_columns("run")}
            for name, forgotten in _PROCESS.items():
                if name in known:
                    connection.execute(update(_RUN).values(forgotten))
            paused = update(_RUN).where(_RUN.c.status.in_(_LIVE))
            connection.execute(paused.values(status=RunStatus.PAUSED.value))
            connection.execute(delete(table("worker")))
    finally:
        engine.dispose()
