"""Comparisons that were saved."""

import pytest
from sqlmodel import Session

from studio.errors import InvalidError, NotFoundError
from studio.services.compare import comparisons


def test_an_address_is_kept_without_its_page(db: Session) -> None:
    assert comparisons.save(db, " a ", "b", "/compare?runs=1,2&x=tokens").query == (
        "runs=1,2&x=tokens"
    )


@pytest.mark.parametrize(
    ("name", "query"), [("", "runs=1"), ("a", "x=step"), ("a" * 201, "runs=1")]
)
def test_what_cannot_be_found_again_is_refused(db: Session, name: str, query: str) -> None:
    with pytest.raises(InvalidError):
        comparisons.save(db, name, "", query)


def test_only_what_is_given_changes(db: Session) -> None:
    number = comparisons.save(db, "a", "b", "runs=1").id or 0
    changed = comparisons.update(db, number, text="c")

    assert (changed.name, changed.text, changed.query) == ("a", "c", "runs=1")


def test_one_that_is_deleted_is_gone(db: Session) -> None:
    number = comparisons.save(db, "a", "b", "runs=1").id or 0
    comparisons.delete(db, number)
    db.flush()

    with pytest.raises(NotFoundError):
        comparisons.get(db, number)
