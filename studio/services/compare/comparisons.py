"""Saved comparisons: a name, a text and the query string of a comparison page."""

from collections.abc import Sequence
from urllib.parse import parse_qs

from sqlmodel import Session, col, select

from studio.db.column_types import now
from studio.db.summaries import SavedComparison
from studio.errors import InvalidError, NotFoundError

MAX_NAME, MAX_TEXT, MAX_QUERY = 200, 20_000, 8_000
"""In characters."""


def save(db: Session, name: str, text: str, query: str) -> SavedComparison:
    """Save a comparison with a new id.

    Raises:
        InvalidError: It has no name or no runs, or is too long.

    """
    comparison = SavedComparison(
        name=_clean_name(name), text=_clean_text(text), query=_clean_query(query)
    )
    db.add(comparison)
    db.flush()
    return comparison


def update(
    db: Session,
    number: int,
    *,
    name: str | None = None,
    text: str | None = None,
    query: str | None = None,
) -> SavedComparison:
    """Change the given fields.

    Raises:
        NotFoundError: There is no such comparison.
        InvalidError: See `save`.

    """
    comparison = get(db, number)
    comparison.name = comparison.name if name is None else _clean_name(name)
    comparison.text = comparison.text if text is None else _clean_text(text)
    comparison.query = comparison.query if query is None else _clean_query(query)
    comparison.changed_at = now()
    return comparison


def get(db: Session, number: int) -> SavedComparison:
    comparison = db.get(SavedComparison, number)
    if comparison is None:
        raise NotFoundError(
            f"Saved comparison {number} does not exist.", hint="It may have been deleted."
        )
    return comparison


def newest(db: Session, *, limit: int, before: int | None = None) -> Sequence[SavedComparison]:
    query = select(SavedComparison).order_by(col(SavedComparison.id).desc()).limit(limit)
    if before is not None:
        query = query.where(col(SavedComparison.id) < before)
    return db.exec(query).all()


def delete(db: Session, number: int) -> None:
    db.delete(get(db, number))


def _clean_name(name: str) -> str:
    if not name.strip() or len(name) > MAX_NAME:
        raise InvalidError(
            "Enter a name for the comparison.", hint=f"At most {MAX_NAME} characters.", param="name"
        )
    return name.strip()


def _clean_text(text: str) -> str:
    if len(text) > MAX_TEXT:
        raise InvalidError(f"The text is longer than {MAX_TEXT} characters.", param="text")
    return text.replace("\r\n", "\n").strip()


def _clean_query(query: str) -> str:
    cleaned = query.strip().removeprefix("/compare").removeprefix("?")
    if len(cleaned) > MAX_QUERY or not parse_qs(cleaned).get("runs"):
        raise InvalidError(
            "This is not the address of a comparison.",
            hint="It must list runs, e.g. runs=1,2.",
            param="query",
        )
    return cleaned
