"""Feedback becomes datasets that its methods train on, with a version for each time."""

import json
from typing import Any

import pytest
from sqlalchemy import Engine

from studio.db.accounts import Account, Role
from studio.db.owners import Actor, acting_as
from studio.db.session import read_session, unit_of_work
from studio.errors import ConflictError
from studio.intake.files.limits import MAX_REQUEST_BYTES, Limits
from studio.methods import METHODS
from studio.services.datasets import data_quality, datasets, versions
from studio.services.feedback import feedback, feedback_datasets
from studio.services.feedback.feedback import FeedbackKind, NewFeedback
from studio.services.feedback.feedback_datasets import FeedbackDataset
from studio.settings import Settings

SAYS: dict[FeedbackKind, dict[str, Any]] = {
    "preference": {"rejected": "No."},
    "judged": {"label": True},
    "conversation": {},
}


def say(engine: Engine, kind: FeedbackKind, number: int, **changes: Any) -> int:  # noqa: ANN401 -- any field of the feedback
    told: dict[str, Any] = {
        "prompt": [{"role": "user", "content": f"Question {number}?"}],
        "answer": f"Answer {number}.",
        "said_in": "chat",
        **SAYS[kind],
        **changes,
    }
    with unit_of_work(engine) as db:
        return feedback.add(db, NewFeedback(**told)).id or 0


def make(engine: Engine, settings: Settings, kind: FeedbackKind) -> FeedbackDataset:
    return feedback_datasets.make(engine, settings.datasets, kind, Limits())


def rows_of(engine: Engine, settings: Settings, made: FeedbackDataset) -> list[dict[str, Any]]:
    with read_session(engine) as db:
        version = versions.get(db, made.dataset_id, made.version or 0)
    return [one.row for one in versions.load_rows(settings.datasets, version).rows]


@pytest.mark.parametrize("kind", SAYS)
def test_feedback_becomes_a_dataset_that_its_method_trains_on(
    engine: Engine, settings: Settings, kind: FeedbackKind
) -> None:
    for number in range(3):
        say(engine, kind, number)

    made = make(engine, settings, kind)

    assert (made.name, made.version, made.rows) == (feedback_datasets.NAMES[kind], 1, 3)
    with read_session(engine) as db:
        version = versions.get(db, made.dataset_id, 1)
        said = [one.row for one in feedback.oldest(db, kind)]
    assert version.kind == kind
    assert data_quality.fits(version, METHODS[feedback_datasets.METHODS[kind]])
    assert rows_of(engine, settings, made) == said


def test_new_feedback_makes_a_new_version_and_the_old_one_stays(
    engine: Engine, settings: Settings
) -> None:
    say(engine, "preference", 1)
    first = make(engine, settings, "preference")
    again = make(engine, settings, "preference")
    say(engine, "preference", 2)

    second = make(engine, settings, "preference")

    assert (again.version, again.is_new) == (1, False)
    assert (second.dataset_id, second.version, second.is_new) == (first.dataset_id, 2, True)
    assert (second.rows, len(rows_of(engine, settings, first))) == (2, 1)
    with read_session(engine) as db:
        dataset = datasets.get(db, first.dataset_id)
        original = settings.datasets / str(dataset.id) / "original.jsonl"
        assert dataset.bytes == original.stat().st_size


def test_excluded_rows_stay_excluded_when_others_are_deleted(
    engine: Engine, settings: Settings
) -> None:
    said = [say(engine, "judged", number) for number in range(4)]
    made = make(engine, settings, "judged")
    data_quality.exclude_rows(engine, settings.datasets, made.dataset_id, [3], Limits())
    with unit_of_work(engine) as db:
        feedback.delete(db, said[0])
    say(engine, "judged", 9)

    second = make(engine, settings, "judged")

    questions = [row["messages"][0]["content"] for row in rows_of(engine, settings, second)]
    assert questions == ["Question 1?", "Question 3?", "Question 9?"]


def test_renamed_dataset_is_found_again(engine: Engine, settings: Settings) -> None:
    say(engine, "conversation", 1)
    first = make(engine, settings, "conversation")
    with unit_of_work(engine) as db:
        datasets.rename(db, first.dataset_id, "my answers")
    say(engine, "conversation", 2)

    second = make(engine, settings, "conversation")

    assert (second.dataset_id, second.name, second.version) == (first.dataset_id, "my answers", 2)


def test_dataset_of_another_member_is_not_changed(engine: Engine, settings: Settings) -> None:
    made = []
    for name in ("ann", "bob"):
        with unit_of_work(engine) as db:
            account = Account(name=name, role=Role.MEMBER)
            db.add(account)
            db.flush()
        with acting_as(Actor(name=name, account_id=account.id, is_limited=True)):
            say(engine, "judged", 1)
            made.append(make(engine, settings, "judged"))

    assert [one.name for one in made] == ["ratings from feedback", "ratings from feedback 2"]
    assert [one.rows for one in made] == [1, 2]


def test_provenance_is_in_the_file_for_filters(engine: Engine, settings: Settings) -> None:
    number = say(engine, "preference", 1, model="run 4", other_model="starter")
    made = make(engine, settings, "preference")

    original = settings.datasets / str(made.dataset_id) / "original.jsonl"
    row = json.loads(original.read_text(encoding="utf-8"))

    assert (row["feedback"], row["said_in"], row["said_by"]) == (number, "chat", "the local user")
    assert (row["model"], row["other_model"]) == ("run 4", "starter")


def test_tools_of_a_row_are_kept(engine: Engine, settings: Settings) -> None:
    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
    say(engine, "conversation", 1)
    make(engine, settings, "conversation")
    say(engine, "conversation", 2, tools=[tool])

    made = make(engine, settings, "conversation")

    assert [row.get("tools") for row in rows_of(engine, settings, made)] == [None, [tool]]


def test_large_file_is_read_by_a_task(engine: Engine, settings: Settings) -> None:
    say(engine, "judged", 1)
    first = make(engine, settings, "judged")
    say(engine, "judged", 2, answer="x" * (MAX_REQUEST_BYTES + 1))

    made = make(engine, settings, "judged")

    assert (made.dataset_id, made.version) == (first.dataset_id, None)
    assert made.chore is not None
    with pytest.raises(ConflictError, match="already being read"):
        make(engine, settings, "judged")


def test_nothing_to_make_a_dataset_of_is_told(engine: Engine, settings: Settings) -> None:
    with pytest.raises(ConflictError, match="no feedback of this kind"):
        make(engine, settings, "judged")
    with read_session(engine) as db:
        assert feedback_datasets.find(db, "judged") is None
