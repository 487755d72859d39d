"""What people say about answers is kept as rows to train on."""

from typing import Any

import pytest
from sqlmodel import Session

from studio.db.accounts import Account, Role
from studio.db.feedback import Feedback
from studio.db.owners import Actor, acting_as
from studio.errors import InvalidError, NotFoundError
from studio.intake.row_formats.schema import Turn
from studio.services.feedback import feedback
from studio.services.feedback.feedback import NewFeedback

ASKED: list[Turn] = [{"role": "user", "content": "What is two plus two?"}]


def say(db: Session, **changes: Any) -> Feedback:  # noqa: ANN401 -- any field of the feedback
    told: dict[str, Any] = {"prompt": ASKED, "answer": "Four.", "said_in": "chat", **changes}
    return feedback.add(db, NewFeedback(**told))


def test_rating_keeps_the_answer_and_its_provenance(db: Session) -> None:
    said = say(db, label=False, model="run 4, step 20", temperature=0.7, seed=3)

    answer = {"role": "assistant", "content": "Four."}
    assert said.kind == "judged"
    assert said.row == {"messages": [*ASKED, answer], "label": False}
    assert (said.model, said.temperature, said.seed) == ("run 4, step 20", 0.7, 3)
    assert (said.said_in, said.said_by) == ("chat", "the local user")


def test_preference_keeps_both_answers(db: Session) -> None:
    said = say(db, rejected="Five.", model="run 4", other_model="starter")

    assert said.kind == "preference"
    assert said.row == {
        "messages": ASKED,
        "chosen": [{"role": "assistant", "content": "Four."}],
        "rejected": [{"role": "assistant", "content": "Five."}],
    }
    assert (said.model, said.other_model) == ("run 4", "starter")


def test_only_the_good_answer_of_a_conversation_is_trained_on(db: Session) -> None:
    earlier: list[Turn] = [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hm"},
    ]

    said = say(db, prompt=[*earlier, *ASKED])

    assert said.kind == "conversation"
    weights = [turn.get("weight") for turn in said.row["messages"]]
    assert weights == [None, 0, None, None]


@pytest.mark.parametrize("kind", ["preference", "judged"])
def test_another_opinion_replaces_the_earlier_one(db: Session, kind: str) -> None:
    if kind == "judged":
        first, second = say(db, label=True), say(db, label=False)
    else:
        first, second = say(db, rejected="Five."), say(db, answer="Five.", rejected="Four.")

    assert first.id == second.id
    assert len(feedback.newest(db)) == 1
    assert second.row.get("label", second.row.get("chosen")) in (
        False,
        [{"role": "assistant", "content": "Five."}],
    )


def test_opinions_of_two_people_are_both_kept(db: Session) -> None:
    for name in ("ann", "bob"):
        account = Account(name=name, role=Role.MEMBER)
        db.add(account)
        db.flush()
        with acting_as(Actor(name=name, account_id=account.id)):
            say(db, label=name == "ann")

    assert [one.said_by for one in feedback.newest(db, "judged")] == ["bob", "ann"]


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"answer": " "}, "answer"),
        ({"rejected": ""}, "rejected"),
        ({"rejected": "Four. "}, "rejected"),
        ({"rejected": "Five.", "label": True}, "label"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [{"role": "user", "content": " "}]}, "prompt"),
    ],
)
def test_what_cannot_be_trained_on_is_refused(
    db: Session, changes: dict[str, Any], param: str
) -> None:
    with pytest.raises(InvalidError) as refused:
        say(db, **changes)

    assert refused.value.param == param
    assert feedback.newest(db) == []


def test_feedback_on_a_run_that_does_not_exist_is_refused(db: Session) -> None:
    with pytest.raises(NotFoundError):
        say(db, run_id=99)


def test_deleted_feedback_is_gone(db: Session) -> None:
    said = say(db)

    feedback.delete(db, said.id or 0)

    assert feedback.count_by_kind(db) == {"preference": 0, "judged": 0, "conversation": 0}
    with pytest.raises(NotFoundError):
        feedback.delete(db, said.id or 0)


def test_summary_counts_kinds_and_tells_the_share_of_longer_answers(db: Session) -> None:
    assert feedback.summarise(db).longer_chosen is None
    for answer, rejected in (("longer", "no"), ("longest", "no"), ("a", "no"), ("ab", "no")):
        say(db, answer=answer, rejected=rejected)
    say(db, label=True)

    told = feedback.summarise(db)

    assert told.counts == {"preference": 4, "judged": 1, "conversation": 0}
    assert told.longer_chosen == pytest.approx(2 / 3)
