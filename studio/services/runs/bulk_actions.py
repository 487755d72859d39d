"""Actions on many runs at once, and how to undo them."""

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
"""The action that undoes each action. Permanent removal cannot be undone."""


def apply_action(
    db: Session, action: BulkAction, run_ids: Sequence[int], tag: str, folder: Path
) -> list[int]:
    """Apply an action to all of the runs or none. Return the ids of those it changed.

    Raises:
        ForbiddenError: a run belongs to another member.
        ConflictError: a run to move to the trash is queued or live.
        InvalidError: the tag is not valid.

    """
    owners.require(db, "runs", run_ids)
    match action:
        case "tag":
            return tags_notes.tag(db, run_ids, tag)
        case "untag":
            return tags_notes.untag(db, run_ids, tag)
        case "remove":
            return trash.remove(db, run_ids, folder)
    actions = {
        "archive": trash.archive,
        "unarchive": trash.unarchive,
        "trash": trash.move_to_trash,
        "restore": trash.restore,
    }
    return actions[action](db, run_ids)
