"""The tables of evaluations: which models answered which rows, and each answer, kept for good."""

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, Column, UniqueConstraint
from sqlmodel import Field, SQLModel

from studio.db.column_types import AUTOINCREMENT, UTCDateTime, now
from studio.db.owners import owner_column
from studio.evaluation.rows import AnswerKind


class AnswerSet(SQLModel, table=True):
    """The answers of one model to some rows; evaluations of the same model and rows share it."""

    __tablename__ = "answer_set"
    __table_args__ = AUTOINCREMENT

    id: int | None = Field(default=None, primary_key=True)
    key: str = Field(unique=True)
    """A checksum of all that decides the answers: weights, template, rows and limits."""
    model: str
    """The name of the model for display: a base model, or `run 12`."""
    made_by: dict[str, Any] = Field(default_factory=dict, sa_column=Column(JSON, nullable=False))
    """What the key is computed from."""
    computed_in: str = ""
    """As in `events.Sampled`; empty until it is finished."""
    created_at: datetime = Field(default_factory=now, sa_type=UTCDateTime)
    finished_at: datetime | None = Field(default=None, sa_type=UTCDateTime)
    """When the model had answered all rows."""

    @property
    def answers(self) -> AnswerKind:
        """What kind of answers they are."""
        kind: AnswerKind = self.made_by.get("answers", "text")
        return kind

    @property
    def is_rule(self) -> bool:
        """Whether a rule answered, which a model should beat."""
        return "rule" in self.made_by["model"]


class Answer(SQLModel, table=True):
    """What a model made of one row: every metric is computed from these."""

    __table_args__ = (UniqueConstraint("answer_set_id", "position"),)

    id: int | None = Field(default=None, primary_key=True)
    answer_set_id: int = Field(foreign_key="answer_set.id", ondelete="CASCADE")
    position: int
    number: int
    """The row's number in its part of the dataset, from 1."""
    prompt: str
    reference: str
    answer: str
    reason: str
    """`stop`, or `length` if the answer was cut off."""
    tokens: int
    nll: float | None = None
    """The loss of the reference in nats, summed; None if it was not measured or is not finite."""
    nll_tokens: int = 0
    rejected_nll: float | None = None
    """The same of the worse answer of a preference."""
    confidence: float | None = None
    """The probability that the model gives its answer; None if it gives none."""
    overlap: str = ""
    """`exact` or `ngram` if the row occurs in the data that the model was trained on."""


class Evaluation(SQLModel, table=True):
    """A comparison of a run's model with its base model on the same rows."""

    __table_args__ = AUTOINCREMENT

    id: int | None = Field(default=None, primary_key=True)
    run_id: int = Field(foreign_key="run.id", index=True, ondelete="CASCADE")
    dataset: str
    """The dataset and version for display: `pets, version 2`."""
    is_held_out: bool
    """Whether its rows are those that the run held out for validation."""
    rows: int
    """The number of rows that were asked for."""
    base_id: int = Field(foreign_key="answer_set.id", index=True)
    tuned_id: int = Field(foreign_key="answer_set.id", index=True)
    owner_id: int | None = owner_column()
    created_at: datetime = Field(default_factory=now, sa_type=UTCDateTime)


class Judgement(SQLModel, table=True):
    """What a judge, or a person, says of the answers of an evaluation."""

    __table_args__ = AUTOINCREMENT

    id: int | None = Field(default=None, primary_key=True)
    evaluation_id: int = Field(foreign_key="evaluation.id", index=True, ondelete="CASCADE")
    judge: str
    """`endpoint`, `person`, or the name of a model of the studio."""
    title: str
    """The judge's name for display."""
    pairs: int
    """How many pairs are to be judged."""
    owner_id: int | None = owner_column()
    created_at: datetime = Field(default_factory=now, sa_type=UTCDateTime)
    finished_at: datetime | None = Field(default=None, sa_type=UTCDateTime)


class JudgedAnswers(SQLModel, table=True):
    """What a judge said of the two answers to one row, in both orders."""

    __tablename__ = "judged_answers"
    __table_args__ = (UniqueConstraint("judgement_id", "position"),)

    id: int | None = Field(default=None, primary_key=True)
    judgement_id: int = Field(foreign_key="judgement.id", ondelete="CASCADE")
    position: int
    """The row's position among those of the evaluation."""
    base_first: str
    """`A`, `B` or `tie`, with the base model's answer as A; empty if the reply was unreadable."""
    tuned_first: str
    base_first_reply: str = ""
    tuned_first_reply: str = ""
