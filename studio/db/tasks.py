"""The tables of exports and tasks, which run in their own process and folder."""

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, Column
from sqlmodel import Field, SQLModel

from studio.db.column_types import AUTOINCREMENT, METRICS_ADAPTER, UTCDateTime, ValidatedJSON, now
from studio.db.owners import owner_column
from studio.db.states import TaskStatus, text_enum


class TaskBase(SQLModel):
    """The columns that exports and tasks share: status, process and progress."""

    id: int | None = Field(default=None, primary_key=True)
    status: TaskStatus = Field(default=TaskStatus.QUEUED, sa_type=text_enum(TaskStatus))
    attempt: int = 0
    """How often a process was started for it."""
    pid: int | None = None
    pid_started: float | None = None
    gpu: int | None = None
    events_offset: int = 0
    phase: str = ""
    share: float = 0
    """The share of the work that is done."""
    error_code: str = ""
    error_message: str = ""
    error_hint: str = ""
    created_at: datetime = Field(default_factory=now, sa_type=UTCDateTime)
    finished_at: datetime | None = Field(default=None, sa_type=UTCDateTime)


class Export(TaskBase, table=True):
    """A run's model in a chosen format, with the measured conversion loss."""

    __table_args__ = AUTOINCREMENT

    run_id: int = Field(foreign_key="run.id", index=True, ondelete="CASCADE")
    kind: str
    """full, merged, merged_original or adapter: see `studio.recipe.exports`."""
    dtype: str
    measured: dict[str, float] = Field(
        default_factory=dict, sa_column=Column(ValidatedJSON(METRICS_ADAPTER), nullable=False)
    )
    """Measurements of the conversion by name; empty until it succeeds."""


class Task(TaskBase, table=True):
    """A background task that no run waits for, such as downloading a file or counting tokens."""

    __tablename__ = "chore"
    __table_args__ = AUTOINCREMENT

    kind: str
    """One of `studio.protocols.tasks.TASK_DEFINITIONS`."""
    subject: str = Field(index=True)
    """The subject, such as `dataset:3`."""
    params: dict[str, Any] = Field(default_factory=dict, sa_column=Column(JSON, nullable=False))
    result: dict[str, Any] = Field(default_factory=dict, sa_column=Column(JSON, nullable=False))
    """The result of its process; empty until it succeeds."""
    owner_id: int | None = owner_column()


class LoadedModel(SQLModel, table=True):
    """The model loaded in a worker's inference service, while the service runs."""

    __tablename__ = "loaded"
    worker: str = Field(primary_key=True)
    model: str = ""
    """The name used in the last request; empty before the first."""
    computed_in: str = Field(default="", sa_column_kwargs={"server_default": ""})
    """The number format of its last answer; empty before the first."""
    since: datetime = Field(default_factory=now, sa_type=UTCDateTime)
    leaves_at: datetime | None = Field(default=None, sa_type=UTCDateTime)
    """When it is unloaded if no request comes; None while it answers."""
    is_leaving: bool = False
    """Whether to unload it after the current answer."""
