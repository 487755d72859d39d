"""Archive, trash, tags, and what takes them back."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlmodel import Session

from studio.errors import ConflictError, InvalidError
from studio.services.runs import bulk_actions, runs, tags_notes
from studio.services.runs.bulk_actions import UNDO, BulkAction
from studio.services.search import run_table
from tests.support.factories import make_finished_run, make_run


@pytest.mark.parametrize("what", ["archive", "trash", "tag"])
def test_bulk_actions_can_be_undone(db: Session, tmp_path: Path, what: BulkAction) -> None:
    before = [make_finished_run(db, name).model_dump() for name in "ab"]
    changed = bulk_actions.apply_action(db, what, [1, 2], "x", tmp_path)
    again = bulk_actions.apply_action(db, what, [1, 2], "x", tmp_path)
    undone = bulk_actions.apply_action(db, UNDO[what], changed, "x", tmp_path)

    assert (changed, again, undone) == ([1, 2], [], [1, 2])
    assert [runs.get(db, one).model_dump() for one in (1, 2)] == before


def test_undoing_bulk_tag_keeps_earlier_tags(db: Session, tmp_path: Path) -> None:
    for name in "ab":
        make_finished_run(db, name)
    tags_notes.tag(db, [1], "x")
    changed = bulk_actions.apply_action(db, "tag", [1, 2], "x", tmp_path)
    bulk_actions.apply_action(db, "untag", changed, "x", tmp_path)

    assert (changed, runs.get(db, 1).tags, runs.get(db, 2).tags) == ([2], ["x"], [])


def test_queued_run_cannot_be_trashed(db: Session) -> None:
    make_finished_run(db), make_run(db)
    with pytest.raises(ConflictError) as refused:
        bulk_actions.move_to_trash(db, [2])

    assert refused.value.message == "Run 2 is queued."


def test_files_are_deleted_only_when_run_is_removed(db: Session, tmp_path: Path) -> None:
    make_finished_run(db)
    file = tmp_path / "1" / "recipe.yaml"
    file.parent.mkdir()
    file.touch()
    assert bulk_actions.remove(db, [1], tmp_path) == []
    bulk_actions.move_to_trash(db, [1])
    assert file.exists()

    assert (bulk_actions.remove(db, [1], tmp_path), file.exists()) == ([1], False)


def test_emptying_trash_removes_only_old_runs(db: Session, tmp_path: Path) -> None:
    for _ in range(3):
        make_finished_run(db)
    bulk_actions.move_to_trash(db, [1, 2])
    runs.get(db, 1).deleted_at = datetime.now(UTC) - timedelta(days=31)

    assert bulk_actions.empty(db, tmp_path) == [1]


@pytest.mark.parametrize(
    "tags", [['a"b'], ["a,b"], ["x" * 61], ["\x00"], [str(i) for i in range(31)]]
)
def test_tag_that_cannot_be_queried_is_rejected(db: Session, tags: list[str]) -> None:
    make_finished_run(db)
    with pytest.raises(InvalidError):
        tags_notes.update(db, 1, tags=tags)


def test_tags_are_deduplicated_and_stripped(db: Session) -> None:
    make_finished_run(db)

    assert tags_notes.update(db, 1, tags=[" a ", "b  c", "a", ""]).tags == ["a", "b c"]
    assert tags_notes.known_tags(db) == ["a", "b c"]


def test_saved_view_with_same_name_is_replaced(db: Session) -> None:
    run_table.save_view(db, "mine", "?q=a")
    run_table.save_view(db, "mine", "q=b&sort=name")

    assert [(one.name, one.query) for one in run_table.list_views(db)] == [
        ("mine", "q=b&sort=name")
    ]
