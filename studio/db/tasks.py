"""The tables of work that a process of its own does, in a folder, with events."""

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, Column
from sqlmodel import Field, SQLModel

from studio.db.column_types import AUTOINCREMENT, METRICS_ADAPTER, UTCDateTime, ValidatedJSON, now
from studio.db.owners import owner_column
from studio.db.states import TaskStatus, text_enum


class TaskBase(SQLModel):
    """Where a piece of work stands. What it is for, the table that has these columns says."""

    id: int | None = Field(default=None, primary_key=True)
    status: TaskStatus = Field(default=TaskStatus.QUEUED, sa_type=text_enum(TaskStatus))
    attempt: int = 0
    """How often a process was made for it."""
    pid: int | None = None
    pid_started: float | None = None
    gpu: int | None = None
    events_offset: int = 0
    phase: str = ""
    share: float = 0
    """How much of the work is done."""
    error_code: str = ""
    error_message: str = ""
    error_hint: str = ""
    created_at: datetime = Field(default_factory=now, sa_type=UTCDateTime)
    finished_at: datetime | None = Field(default=None, sa_type=UTCDateTime)


class Export(TaskBase, table=True):
    """A run's model in a format of one's choice, and what the conversion did to it."""

    __table_args__ = AUTOINCREMENT

    run_id: int = Field(foreign_key="run.id", index=True, ondelete="CASCADE")
    kind: str
    """full, merged, merged_original or adapter: see `studio.recipe.exports`."""
    dtype: str
    measured: dict[str, float] = Field(
        default_factory=dict, sa_column=Column(ValidatedJSON(METRICS_ADAPTER), nullable=False)
    )
    """What the conversion did, by name; empty until it has succeeded."""


class Task(TaskBase, table=True):
    """Long work that no run waits for: to fetch a file, to count the tokens of a data set."""

    __tablename__ = "chore"
    __table_args__ = AUTOINCREMENT

    kind: str
    """One of `studio.protocols.tasks.TASK_DEFINITIONS`."""
    subject: str = Field(index=True)
    """What it is for, as `dataset:3`."""
    params: dict[str, Any] = Field(default_factory=dict, sa_column=Column(JSON, nullable=False))
    result: dict[str, Any] = Field(default_factory=dict, sa_column=Column(JSON, nullable=False))
    """What its process has returned; empty until it has succeeded."""
    owner_id: int | None = owner_column()


class LoadedModel(SQLModel, table=True):
    """The model that is loaded to answer, for as long as the speaker of a worker lives."""

    __tablename__ = "loaded"
    worker: str = Field(primary_key=True)
    model: str = ""
    """The name it was asked by last; empty until somebody is heard."""
    computed_in: str = Field(default="", sa_column_kwargs={"server_default": ""})
    """The number format of its last answer; empty until it has given one."""
    since: datetime = Field(default_factory=now, sa_type=UTCDateTime)
    leaves_at: datetime | None = Field(default=None, sa_type=UTCDateTime)
    """When it goes unless it is asked; None while it answers."""
    is_leaving: bool = False
    """Whether it is to go as soon as the answer at hand is whole."""
