"""What is done to many runs at once, and what undoes it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from sqlmodel import Session

from studio.services.accounts import owners
from studio.services.runs import tags_notes, trash

BulkAction = Literal["archive", "unarchive", "trash", "restore", "remove", "tag", "untag"]

MAX_RUNS = 10_000

UNDO: dict[BulkAction, BulkAction] = {
    "archive": "unarchive",
    "unarchive": "archive",
    "trash": "restore",
    "restore": "trash",
    "tag": "untag",
    "untag": "tag",
}
"""What takes an act back. Removing for good cannot be taken back."""


def apply_action(
    db: Session, what: BulkAction, run_ids: Sequence[int], tag: str, folder: Path
) -> list[int]:
    """Do something to runs, all or none. Return those that it changed.

    Raises:
        ForbiddenError: one of them is another's.
        ConflictError: one of them waits or trains, and shall be thrown away.
        InvalidError: the tag cannot be kept.

    """
    owners.require(db, "runs", run_ids)
    match what:
        case "tag":
            return tags_notes.tag(db, run_ids, tag)
        case "untag":
            return tags_notes.untag(db, run_ids, tag)
        case "remove":
            return trash.remove(db, run_ids, folder)
    plain = {
        "archive": trash.archive,
        "unarchive": trash.unarchive,
        "trash": trash.move_to_trash,
        "restore": trash.restore,
    }
    return plain[what](db, run_ids)
