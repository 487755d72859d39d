"""The table of feedback: what people said about answers, each as a row to train on."""

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, Column
from sqlmodel import Field, SQLModel

from studio.db.column_types import AUTOINCREMENT, UTCDateTime, now
from studio.db.owners import current_actor, owner_column


class Feedback(SQLModel, table=True):
    """What somebody said about an answer."""

    __table_args__ = AUTOINCREMENT

    id: int | None = Field(default=None, primary_key=True)
    kind: str = Field(index=True)
    """The kind of its row: preference, judged or conversation."""
    key: str = Field(index=True)
    """A checksum of what it is about: of another opinion on the same, only the newest is kept."""
    row: dict[str, Any] = Field(default_factory=dict, sa_column=Column(JSON, nullable=False))
    """A canonical row; see `studio.intake.row_formats.schema`."""
    said_in: str
    """Where it was said: api, chat, playground, evaluation or sample."""
    run_id: int | None = Field(default=None, foreign_key="run.id", index=True, ondelete="SET NULL")
    """The run whose page it was said on; None once deleted."""
    evaluation_id: int | None = Field(
        default=None, foreign_key="evaluation.id", index=True, ondelete="SET NULL"
    )
    position: int | None = None
    """The position of the row in the evaluation."""
    model: str = ""
    """The name of the model that gave the answer: a base model, `run 12`, or `run 12, step 40`;
    of a preference, of the better answer. Empty if a person wrote the answer."""
    other_model: str = ""
    """The name of the model that gave the worse answer of a preference."""
    temperature: float | None = None
    """What the answers were sampled with, if known."""
    seed: int | None = None
    said_by: str = Field(default_factory=lambda: current_actor().name)
    owner_id: int | None = owner_column()
    created_at: datetime = Field(default_factory=now, sa_type=UTCDateTime)
