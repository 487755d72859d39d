"""Folders that belong to a row: filled aside, moved into place whole, moved away before they go.

Whatever the moment of a crash, a row has its files. What a crash may leave behind is a folder
without a row, and `remove_orphans` takes it away.
"""

import errno
import os
import shutil
from collections.abc import Container, Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from sqlalchemy import event
from sqlmodel import Session

from studio.errors import DiskFullError

_STAGING_PREFIX = ".new-"
_DELETED_PREFIX = ".gone-"
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


@contextmanager
def explain_disk_full() -> Iterator[None]:
    """Say in words that the disk is full.

    Raises:
        DiskFullError: what was to be written did not fit.

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
def staging_dir(parent: Path) -> Iterator[Path]:
    """Make a folder to fill; it is gone afterwards unless it was moved into place."""
    stage = parent / f"{_STAGING_PREFIX}{uuid4().hex}"
    try:
        with explain_disk_full():
            stage.mkdir(parents=True)
            yield stage
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def sync_dir(stage: Path) -> None:
    """Wait until all that was put into a folder is safe on the disk."""
    for path in (*stage.iterdir(), stage):
        _sync(path)


def move_into_place(stage: Path, folder: Path) -> None:
    """Move a filled folder to where its row says it is."""
    if folder.exists():
        # No row has this id yet, so this is what a crash left of another try.
        shutil.rmtree(folder)
    stage.replace(folder)
    _sync(folder.parent)


def delete_on_commit(db: Session, folder: Path) -> None:
    """Delete a folder once the deletion of its row is committed; put it back if that fails."""
    gone = folder.with_name(f"{_DELETED_PREFIX}{folder.name}-{uuid4().hex}")
    if not folder.exists():
        return
    folder.replace(gone)

    @event.listens_for(db, "after_commit", once=True)
    def _remove(_db: Session) -> None:
        shutil.rmtree(gone, ignore_errors=True)

    @event.listens_for(db, "after_rollback", once=True)
    def _restore(_db: Session) -> None:
        if gone.exists():
            gone.replace(folder)


def remove_orphans(parent: Path, names: Container[str]) -> None:
    """Take away what crashes left, and put back what was about to go when its row stayed."""
    finish_deletions(parent, names)
    for path in sorted(parent.iterdir()) if parent.exists() else []:
        if path.name.startswith(_STAGING_PREFIX) or _is_orphan(path, names):
            shutil.rmtree(path, ignore_errors=True)


def finish_deletions(parent: Path, names: Container[str]) -> None:
    """End the deletions that a crash cut off, or put back what has its row still."""
    for path in sorted(parent.glob(f"{_DELETED_PREFIX}*")):
        owner = path.name.removeprefix(_DELETED_PREFIX).rpartition("-")[0]
        if owner in names and not (parent / owner).exists():
            path.replace(parent / owner)
        else:
            shutil.rmtree(path, ignore_errors=True)


def _is_orphan(path: Path, names: Container[str]) -> bool:
    return path.name.isdecimal() and path.name not in names


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
