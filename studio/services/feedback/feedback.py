"""Collect feedback: ratings, preferences and good answers, each kept as a row to train on."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from sqlmodel import Session, col, func, select

from studio.db.column_types import now
from studio.db.feedback import Feedback
from studio.db.owners import current_actor, current_owner_id
from studio.errors import InvalidError, NotFoundError
from studio.intake.mapping import Mapping as RowMapping
from studio.intake.row_formats.row_builder import build_row, encode_row
from studio.intake.row_formats.schema import Turn, UnusableRowError, make_turn
from studio.services.runs import runs

FeedbackKind = Literal["preference", "judged", "conversation"]
SaidIn = Literal["api", "chat", "playground", "evaluation", "sample"]

MAPPINGS: Mapping[FeedbackKind, RowMapping] = {
    "preference": RowMapping(
        shape="preference",
        roles={
            "prompt": ["messages"],
            "chosen": ["chosen"],
            "rejected": ["rejected"],
            "tools": ["tools"],
        },
        media="ignore",
    ),
    "judged": RowMapping(
        shape="judged",
        roles={"messages": ["messages"], "label": ["label"], "tools": ["tools"]},
        media="ignore",
    ),
    "conversation": RowMapping(
        shape="messages",
        roles={"messages": ["messages"], "tools": ["tools"]},
        media="ignore",
    ),
}
"""How the rows of each kind are read from a file."""

MIN_PREFERENCES = 50
"""Fewer preferences than this teach little."""
MAX_SHARE_OF_LONGER = 0.8
"""If more of the better answers are the longer ones, length is what a model learns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewFeedback:
    """What somebody says about an answer.

    With `label` it is a rating, with `rejected` a preference, and without both a good answer.
    """

    prompt: Sequence[Turn]
    answer: str
    """The answer that is rated, the better answer of a preference, or a good answer."""
    rejected: str | None = None
    label: bool | None = None
    tools: Sequence[Mapping[str, Any]] = ()
    said_in: SaidIn
    run_id: int | None = None
    evaluation_id: int | None = None
    position: int | None = None
    model: str = ""
    other_model: str = ""
    temperature: float | None = None
    seed: int | None = None

    @property
    def kind(self) -> FeedbackKind:
        if self.rejected is not None:
            return "preference"
        return "conversation" if self.label is None else "judged"


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedbackSummary:
    """What was collected so far."""

    counts: Mapping[FeedbackKind, int] = field(default_factory=dict)
    longer_chosen: float | None = None
    """The share of preferences whose better answer is the longer one; None without any of
    different lengths."""
    good_ratings: int = 0
    """How many of the rated answers are rated good."""

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    @property
    def is_length_bias(self) -> bool:
        """Whether a model would mostly learn to write longer, or shorter."""
        share = self.longer_chosen
        return share is not None and not 1 - MAX_SHARE_OF_LONGER <= share <= MAX_SHARE_OF_LONGER

    @property
    def is_one_sided(self) -> bool:
        """Whether all rated answers are rated the same."""
        return self.good_ratings in {0, self.counts.get("judged", 0)}


def add(db: Session, new: NewFeedback) -> Feedback:
    """Keep what the current user says about an answer.

    What they said before about the same answers to the same prompt is replaced.

    Raises:
        InvalidError: it cannot be trained on; the message explains why.
        NotFoundError: the run does not exist.

    """
    row = _build_row(new)
    if new.run_id is not None:
        runs.get(db, new.run_id)
    key = _key(new.kind, row)
    same = select(Feedback).where(Feedback.key == key, Feedback.owner_id == current_owner_id())
    feedback = db.exec(same).first() or Feedback(kind=new.kind, key=key, said_in=new.said_in)
    feedback.row, feedback.said_in = row, new.said_in
    feedback.run_id, feedback.evaluation_id = new.run_id, new.evaluation_id
    feedback.position = new.position
    feedback.model, feedback.other_model = new.model, new.other_model
    feedback.temperature, feedback.seed = new.temperature, new.seed
    feedback.said_by, feedback.created_at = current_actor().name, now()
    db.add(feedback)
    db.flush()
    return feedback


def get(db: Session, feedback_id: int) -> Feedback:
    feedback = db.get(Feedback, feedback_id)
    if feedback is None:
        raise NotFoundError(
            f"Feedback {feedback_id} does not exist.", hint="It may have been deleted."
        )
    return feedback


def delete(db: Session, feedback_id: int) -> None:
    """Take back what was said. Datasets that were made of it keep their rows."""
    db.delete(get(db, feedback_id))


def newest(
    db: Session, kind: FeedbackKind | None = None, *, limit: int = 100, before: int | None = None
) -> Sequence[Feedback]:
    """Return feedback, newest first."""
    query = select(Feedback).order_by(col(Feedback.id).desc()).limit(limit)
    if kind is not None:
        query = query.where(Feedback.kind == kind)
    if before is not None:
        query = query.where(col(Feedback.id) < before)
    return db.exec(query).all()


def oldest(db: Session, kind: FeedbackKind) -> Sequence[Feedback]:
    """Return all feedback of a kind in the order of its numbers, as files hold it."""
    query = select(Feedback).where(Feedback.kind == kind)
    return db.exec(query.order_by(col(Feedback.id))).all()


def count_by_kind(db: Session) -> dict[FeedbackKind, int]:
    """Return how much feedback there is of each kind."""
    counted = dict(db.exec(select(Feedback.kind, func.count()).group_by(Feedback.kind)).all())
    return {kind: counted.get(kind, 0) for kind in MAPPINGS}


def summarise(db: Session) -> FeedbackSummary:
    """Return what was collected so far, and whether the better answers are just the longer."""
    pairs = db.exec(select(Feedback.row).where(Feedback.kind == "preference")).all()
    ratings = db.exec(select(Feedback.row).where(Feedback.kind == "judged")).all()
    return FeedbackSummary(
        counts=count_by_kind(db),
        longer_chosen=share_of_longer(pairs),
        good_ratings=sum(rating["label"] for rating in ratings),
    )


def share_of_longer(pairs: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the share of preferences whose better answer is the longer, equal lengths aside."""
    lengths = [(_answer_chars(pair["chosen"]), _answer_chars(pair["rejected"])) for pair in pairs]
    longer = [chosen > rejected for chosen, rejected in lengths if chosen != rejected]
    return sum(longer) / len(longer) if longer else None


def _answer_chars(turns: Sequence[Turn]) -> int:
    return sum(len(turn["content"]) for turn in turns)


def _build_row(new: NewFeedback) -> dict[str, Any]:
    """Return the row as a dataset would have it, so that whatever is kept can be trained on."""
    if new.rejected is not None and new.label is not None:
        raise InvalidError(
            "This is both a rating and a preference.",
            hint="Send either a label or a rejected answer.",
            param="label",
        )
    _require_text(new.answer, "answer")
    if new.rejected is not None:
        _require_text(new.rejected, "rejected")
    if new.rejected is not None and new.rejected.strip() == new.answer.strip():
        raise InvalidError(
            "Both answers are the same, so neither is better.",
            hint="Change one of them, or rate the answer.",
            param="rejected",
        )
    values: dict[str, Any] = {"tools": list(new.tools)} if new.tools else {}
    prompt, answer = list(new.prompt), make_turn("assistant", new.answer)
    if new.rejected is not None:
        rejected = make_turn("assistant", new.rejected)
        values |= {"messages": prompt, "chosen": [answer], "rejected": [rejected]}
    elif new.label is not None:
        values |= {"messages": [*prompt, answer], "label": new.label}
    else:
        values |= {"messages": [*_context(prompt), answer]}
    try:
        row = build_row(MAPPINGS[new.kind], values)
        encode_row(row)
    except UnusableRowError as error:
        raise InvalidError(
            f"This cannot be trained on: {error.code.message}", param="prompt"
        ) from error
    return {**row}


def _require_text(answer: str, param: str) -> None:
    if not answer.strip():
        raise InvalidError(
            "The answer is empty, so nothing can be learned from it.",
            hint="Edit it first.",
            param=param,
        )


def _context(turns: Sequence[Turn]) -> list[Turn]:
    """Return turns of which no answer is trained on: no one said that these are good."""
    return [
        cast("Turn", {**turn, "weight": 0}) if turn["role"] == "assistant" else turn
        for turn in turns
    ]


def _key(kind: FeedbackKind, row: Mapping[str, Any]) -> str:
    """Return a checksum of what is judged, without the judgement."""
    about = {name: row.get(name) for name in ("messages", "tools")}
    answers = sorted(json.dumps(row.get(side)) for side in ("chosen", "rejected"))
    text = json.dumps([kind, about, answers], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
