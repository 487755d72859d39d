"""Folders that belong to a database row: staged, moved into place, and moved away before deletion.

Whenever a crash happens, a row has its files. A crash may only leave a folder without a row, which
`remove_orphans` deletes.

"""

import errno
import shutil
from collections.abc import Container, Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from sqlalchemy import event
from sqlmodel import Session

from studio import files
from studio.errors import DiskFullError

_STAGING_PREFIX = ".new-"
_DELETED_PREFIX = ".gone-"
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


@contextmanager
def explain_disk_full() -> Iterator[None]:
    """Translate errors of a full disk.

    Raises:
        DiskFullError: the disk is full.

    """
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise DiskFullError(
            "The disk is full; nothing was saved.", hint="Free some space, then try again."
        ) from error


@contextmanager
def staging_dir(parent: Path, name: str = "") -> Iterator[Path]:
    """Create a staging folder; it is deleted afterwards unless it was moved into place."""
    stage = parent / (name or f"{_STAGING_PREFIX}{uuid4().hex}")
    try:
        with explain_disk_full():
            stage.mkdir(mode=0o700, parents=True)
            yield stage
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def move_into_place(stage: Path, folder: Path) -> None:
    """Move a staged folder to where its row expects it."""
    if folder.exists():
        # No row has this id yet, so this folder was left by a crash.
        shutil.rmtree(folder)
    stage.replace(folder)
    files.sync(folder.parent)


def delete_on_commit(db: Session, folder: Path) -> None:
    """Delete a folder when the transaction commits; move it back on a rollback."""
    moved = folder.with_name(f"{_DELETED_PREFIX}{folder.name}-{uuid4().hex}")
    if not folder.exists():
        return
    folder.replace(moved)

    @event.listens_for(db, "after_commit", once=True)
    def _remove(_db: Session) -> None:
        shutil.rmtree(moved, ignore_errors=True)

    @event.listens_for(db, "after_rollback", once=True)
    def _restore(_db: Session) -> None:
        if moved.exists():
            moved.replace(folder)


def remove_orphans(parent: Path, names: Container[str]) -> None:
    """Delete what crashes left, and restore folders whose rows still exist."""
    finish_deletions(parent, names)
    for path in sorted(parent.iterdir()) if parent.exists() else []:
        is_orphan = path.name.isdecimal() and path.name not in names
        if is_orphan or path.name.startswith(_STAGING_PREFIX):
            shutil.rmtree(path, ignore_errors=True)


def finish_deletions(parent: Path, names: Container[str]) -> None:
    """Finish interrupted deletions, or restore folders whose rows still exist."""
    for path in sorted(parent.glob(f"{_DELETED_PREFIX}*")):
        owner = path.name.removeprefix(_DELETED_PREFIX).rpartition("-")[0]
        if owner in names and not (parent / owner).exists():
            path.replace(parent / owner)
        else:
            shutil.rmtree(path, ignore_errors=True)
