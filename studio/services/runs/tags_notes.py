"""What people write on runs: names, notes and tags."""

import json
from collections.abc import Iterable, Sequence

from sqlalchemy import String, type_coerce
from sqlmodel import Session, col, select

from studio.db.loose_index_scan import distinct_values
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
    """Change what is written on a run; None leaves it as it is.

    Raises:
        InvalidError: a name, note or tag that cannot be kept.

    """
    run = runs.get(db, run_id)
    # All is looked at before any of it is kept.
    name = run.name if name is None else experiments.clean_name(name)
    notes = run.notes if notes is None else clean_notes(notes)
    run.tags = run.tags if tags is None else clean_tags(tags)
    run.name, run.notes = name, notes
    return run


def tag(db: Session, run_ids: Sequence[int], name: str) -> list[int]:
    """Put a tag on runs. Return those that did not have it."""
    (wanted,) = clean_tags([name]) or [""]
    if not wanted:
        raise InvalidError("A tag is needed.", hint="Write a word or two.", param="tag")
    changed = [run for run in load_runs(db, run_ids) if wanted not in run.tags]
    for run in changed:
        run.tags = clean_tags([*run.tags, wanted])
    return [run.id or 0 for run in changed]


def untag(db: Session, run_ids: Sequence[int], name: str) -> list[int]:
    """Take a tag off runs. Return those that had it."""
    changed = [run for run in load_runs(db, run_ids) if name in run.tags]
    for run in changed:
        run.tags = [one for one in run.tags if one != name]
    return [run.id or 0 for run in changed]


def load_runs(db: Session, run_ids: Sequence[int]) -> Sequence[Run]:
    return db.exec(select(Run).where(col(Run.id).in_(run_ids))).all()


def known_tags(db: Session) -> list[str]:
    """Return the tags there are."""
    # Most runs have none, and many have the same: few lists are read, as the text they are.
    kept = type_coerce(col(Run.tags), String)
    lists = db.scalars(distinct_values(kept, col(Run.deleted_at).is_(None)))
    return sorted({one for some in lists if some for one in json.loads(some)})


def clean_notes(notes: str) -> str:
    notes = notes.replace("\r\n", "\n").strip()
    if len(notes) > NOTES_LIMIT:
        raise InvalidError(f"Notes have at most {NOTES_LIMIT:,} characters.", param="notes")
    return notes


def clean_tags(tags: Iterable[str]) -> list[str]:
    """Return tags as they are kept: each once, without space around them.

    Raises:
        InvalidError: one is too long, or has what a query could not name.

    """
    found = list(dict.fromkeys(filter(None, (" ".join(one.split()) for one in tags))))
    for one in found:
        if len(one) > TAG_LIMIT or not one.isprintable() or set(one) & set('",'):
            raise InvalidError(
                f"A tag has at most {TAG_LIMIT} characters, and no comma or quotation mark.",
                param="tags",
            )
    if len(found) > MAX_TAGS:
        raise InvalidError(f"A run has at most {MAX_TAGS} tags.", param="tags")
    return found
