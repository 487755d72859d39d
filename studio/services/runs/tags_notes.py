"""Names, notes and tags of runs."""

import json
from collections.abc import Iterable, Sequence

from sqlmodel import Session, col, select

from studio.db.sql_functions import distinct_values, json_text
from studio.db.tables import Run
from studio.errors import InvalidError
from studio.services import experiments
from studio.services.runs import runs

NOTES_LIMIT = 10_000
TAG_LIMIT = 60
MAX_TAGS = 30


def update(
    db: Session,
    run_id: int,
    *,
    name: str | None = None,
    notes: str | None = None,
    tags: Iterable[str] | None = None,
) -> Run:
    """Change a run's name, notes or tags; None leaves a field unchanged.

    Raises:
        InvalidError: the name, the notes or a tag is not valid.

    """
    run = runs.get(db, run_id)
    # Validate everything before changing anything.
    name = run.name if name is None else experiments.clean_name(name)
    notes = run.notes if notes is None else clean_notes(notes)
    run.tags = run.tags if tags is None else clean_tags(tags)
    run.name, run.notes = name, notes
    return run


def tag(db: Session, run_ids: Sequence[int], name: str) -> list[int]:
    """Add a tag to runs. Return the ids of those that did not have it."""
    (clean_tag,) = clean_tags([name]) or [""]
    if not clean_tag:
        raise InvalidError("Enter a tag.", hint="Use a word or two.", param="tag")
    changed = [run for run in load_runs(db, run_ids) if clean_tag not in run.tags]
    for run in changed:
        run.tags = clean_tags([*run.tags, clean_tag])
    return [run.id or 0 for run in changed]


def untag(db: Session, run_ids: Sequence[int], name: str) -> list[int]:
    """Remove a tag from runs. Return the ids of those that had it."""
    changed = [run for run in load_runs(db, run_ids) if name in run.tags]
    for run in changed:
        run.tags = [tag_name for tag_name in run.tags if tag_name != name]
    return [run.id or 0 for run in changed]


def load_runs(db: Session, run_ids: Sequence[int]) -> Sequence[Run]:
    return db.exec(select(Run).where(col(Run.id).in_(run_ids))).all()


def known_tags(db: Session) -> list[str]:
    """Return all tags in use."""
    # Most runs have no tags and many share the same: reading distinct lists as text is faster.
    lists = db.scalars(distinct_values(json_text(col(Run.tags)), col(Run.deleted_at).is_(None)))
    return sorted({tag_name for text in lists if text for tag_name in json.loads(text)})


def clean_notes(notes: str) -> str:
    notes = notes.replace("\r\n", "\n").strip()
    if len(notes) > NOTES_LIMIT:
        raise InvalidError(f"Notes can have up to {NOTES_LIMIT:,} characters.", param="notes")
    return notes


def clean_tags(tags: Iterable[str]) -> list[str]:
    """Return tags as they are stored: without duplicates or surrounding spaces.

    Raises:
        InvalidError: there are too many, or one is too long or has characters queries cannot name.

    """
    cleaned = list(dict.fromkeys(filter(None, (" ".join(tag_name.split()) for tag_name in tags))))
    for tag_name in cleaned:
        if len(tag_name) > TAG_LIMIT or not tag_name.isprintable() or set(tag_name) & set('",'):
            raise InvalidError(
                f"Tags can have up to {TAG_LIMIT} characters, without commas or quotation marks.",
                param="tags",
            )
    if len(cleaned) > MAX_TAGS:
        raise InvalidError(f"A run can have up to {MAX_TAGS} tags.", param="tags")
    return cleaned
