"""Comparisons that were saved."""

import pytest
from sqlmodel import Session

from studio.errors import InvalidError, NotFoundError
from studio.services.compare import comparisons


def test_saved_comparison_keeps_only_query_string(db: Session) -> None:
    assert comparisons.save(db, " a ", "b", "/compare?runs=1,2&x=tokens").query == (
        "runs=1,2&x=tokens"
    )


@pytest.mark.parametrize(
    ("name", "query"), [("", "runs=1"), ("a", "x=step"), ("a" * 201, "runs=1")]
)
def test_invalid_comparison_name_or_query_is_rejected(db: Session, name: str, query: str) -> None:
    with pytest.raises(InvalidError):
        comparisons.save(db, name, "", query)


def test_update_changes_only_given_fields(db: Session) -> None:
    number = comparisons.save(db, "a", "b", "runs=1").id or 0
    changed = comparisons.update(db, number, text="c")

    assert (changed.name, changed.text, changed.query) == ("a", "c", "runs=1")


def test_deleted_comparison_is_not_found(db: Session) -> None:
    number = comparisons.save(db, "a", "b", "runs=1").id or 0
    comparisons.delete(db, number)
    db.flush()

    with pytest.raises(NotFoundError):
        comparisons.get(db, number)
