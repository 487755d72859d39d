"""The tables. A row is data: what may be done with it is said in `studio.services`."""

from datetime import datetime
from typing import Any

from pydantic import BaseModel, ConfigDict, TypeAdapter
from sqlalchemy import JSON, Column, Index, UniqueConstraint, text
from sqlmodel import Field, SQLModel

import studio.db.openai
import studio.db.sweeps  # noqa: F401 -- a run refers to its sweep
from studio.db.column_types import (
    AUTOINCREMENT,
    METRICS_ADAPTER,
    HomePath,
    UTCDateTime,
    ValidatedJSON,
    now,
)
from studio.db.owners import owner_column
from studio.db.states import DatasetStatus, RunCommand, RunStatus, text_enum
from studio.methods import RECIPE_ADAPTER, AnyRecipe


class Experiment(SQLModel, table=True):
    """A named recipe with notes and tags: what to try."""

    __table_args__ = AUTOINCREMENT

    id: int | None = Field(default=None, primary_key=True)
    name: str
    notes: str = ""
    tags: list[str] = Field(default_factory=list, sa_column=Column(JSON, nullable=False))
    recipe: AnyRecipe = Field(sa_column=Column(ValidatedJSON(RECIPE_ADAPTER), nullable=False))
    precision_reason: str = Field(default="", sa_column_kwargs={"server_default": ""})
    """Why the studio chose the recipe's precision; empty where a person did."""
    parent: str = Field(default="", sa_column_kwargs={"server_default": ""})
    """What its recipe was made from, as `run:12` or `experiment:3`; it may be gone by now."""
    owner_id: int | None = owner_column()
    created_at: datetime = Field(default_factory=now, sa_type=UTCDateTime)


class Study(SQLModel, table=True):
    """One recipe in several precisions and with several seeds: to see what a precision costs."""

    __table_args__ = AUTOINCREMENT

    id: int | None = Field(default=None, primary_key=True)
    experiment_id: int = Field(foreign_key="experiment.id", index=True, ondelete="CASCADE")
    name: str
    modes: list[str] = Field(default_factory=list, sa_column=Column(JSON, nullable=False))
    seeds: list[int] = Field(default_factory=list, sa_column=Column(JSON, nullable=False))
    max_steps: int | None = None
    """How long each run is; None leaves that to the recipe."""
    owner_id: int | None = owner_column()
    created_at: datetime = Field(default_factory=now, sa_type=UTCDateTime)


class Run(SQLModel, table=True):
    """One execution of an experiment: queued, trained, measured."""

    # Rows are wide: what lists look through and the census adds up stands in indexes as a whole.
    __table_args__ = (
        Index("run_by_status", "status", "id", "archived_at", "deleted_at"),
        Index("run_in_words", "id", "name", "notes", "archived_at", "deleted_at"),
        Index("run_by_tags", "tags", "deleted_at"),
        Index("run_took", "finished_at", "claimed_at", "tokens"),
        # No trial of a sweep is made twice, whoever makes it.
        Index("run_of_sweep", "sweep_id", "trial", unique=True),
        AUTOINCREMENT,
    )

    id: int | None = Field(default=None, primary_key=True)
    experiment_id: int = Field(foreign_key="experiment.id", index=True)
    study_id: int | None = Field(default=None, foreign_key="study.id", index=True)
    sweep_id: int | None = Field(default=None, foreign_key="sweep.id")
    trial: int | None = None
    """Its number in its sweep, counted from zero."""
    is_pruned: bool = Field(default=False, sa_column_kwargs={"server_default": text("0")})
    """Whether its sweep had it stopped early, because it looked hopeless."""
    name: str
    recipe: AnyRecipe = Field(sa_column=Column(ValidatedJSON(RECIPE_ADAPTER), nullable=False))
    precision_reason: str = Field(default="", sa_column_kwargs={"server_default": ""})
    """Why the studio chose the recipe's precision; empty where a person did."""
    dataset_version_id: int | None = Field(
        default=None, foreign_key="dataset_version.id", index=True
    )
    """The rows it learns from, as they were when it was submitted; None once they are deleted."""
    status: RunStatus = Field(
        default=RunStatus.QUEUED, sa_column=Column(text_enum(RunStatus), nullable=False)
    )
    priority: int = 0
    """Higher starts first."""
    rank: int | None = None
    """Its place among runs of one priority, where a person has moved it; else its id is."""
    is_held: bool = False
    """Whether it waits until a person lets it go."""
    slots: int = 1
    """How many of the machine's slots it takes; it trains on one GPU all the same."""
    asked: RunCommand | None = Field(default=None, sa_column=Column(text_enum(RunCommand)))
    """What was asked of it last, until that is done."""
    attempt: int = 0
    """How often a worker has claimed it."""
    resumes: bool = False
    """Whether the next attempt goes on from a checkpoint."""
    worker: str = ""
    lease_until: datetime | None = Field(default=None, sa_type=UTCDateTime)
    """Until when its worker need not be heard of again; then another may take it over."""
    handle: str = ""
    """What the launcher calls the process that trains it; empty when there is none."""
    gpu: int | None = None
    """Which GPU it was given; None on a machine without."""
    checkpoint_step: int | None = None
    """The step of its newest checkpoint."""
    resumed_step: int = 0
    """Where its present attempt went on from."""
    events_offset: int = 0
    phase: str = ""
    """What it does besides training: loading, tokenising, saving."""
    step: int = 0
    total_steps: int | None = None
    epoch: float = 0
    tokens: int = 0
    metrics: dict[str, float] = Field(
        default_factory=dict, sa_column=Column(ValidatedJSON(METRICS_ADAPTER), nullable=False)
    )
    """The newest value of each metric."""
    resolved: dict[str, Any] = Field(default_factory=dict, sa_column=Column(JSON, nullable=False))
    """What really ran: dtypes, counts, versions. Empty until the trainer is built."""
    estimate: dict[str, Any] = Field(
        default_factory=dict, sa_column=Column(JSON, nullable=False, server_default="{}")
    )
    """What was estimated of its memory and time when it was submitted."""
    error_code: str = ""
    error_message: str = ""
    error_hint: str = ""
    notes: str = Field(default="", sa_column_kwargs={"server_default": ""})
    tags: list[str] = Field(
        default_factory=list, sa_column=Column(JSON, nullable=False, server_default="[]")
    )
    archived_at: datetime | None = Field(default=None, sa_type=UTCDateTime)
    """When it was put out of sight; lists show it when asked."""
    deleted_at: datetime | None = Field(default=None, sa_type=UTCDateTime)
    """When it was put into the trash, from which it can be taken back for some weeks."""
    owner_id: int | None = owner_column()
    created_at: datetime = Field(default_factory=now, sa_type=UTCDateTime)
    claimed_at: datetime | None = Field(default=None, sa_type=UTCDateTime)
    started_at: datetime | None = Field(default=None, sa_type=UTCDateTime)
    first_step_at: datetime | None = Field(default=None, sa_type=UTCDateTime)
    finished_at: datetime | None = Field(default=None, sa_type=UTCDateTime)


class Attempt(SQLModel, table=True):
    """One go at a run: who made it, how it began, how it ended."""

    __table_args__ = (UniqueConstraint("run_id", "number"),)

    id: int | None = Field(default=None, primary_key=True)
    run_id: int = Field(foreign_key="run.id", index=True)
    number: int
    worker: str
    from_step: int = 0
    began_at: datetime = Field(default_factory=now, sa_type=UTCDateTime)
    ended_at: datetime | None = Field(default=None, sa_type=UTCDateTime)
    outcome: str = ""
    """The run's status after it, or `lost` when its process was gone without a word."""
    exit_code: int | None = None
    """None where nobody could know it; negative for a signal."""


_NON_FINITE_ONLY: dict[str, Any] = dict.fromkeys(
    ("sqlite_where", "postgresql_where"), text("value IS NULL")
)
"""Which numbers an index is for that holds only those that are not finite."""


class Metric(SQLModel, table=True):
    """One number at one step. Its id orders everything that was ever told, for live viewers."""

    __table_args__ = (
        UniqueConstraint("run_id", "key", "step"),
        Index("metric_drawn", "run_id", "key", "step", "value"),
        Index("metric_broken", "run_id", "key", "step", **_NON_FINITE_ONLY),
        AUTOINCREMENT,
    )

    id: int | None = Field(default=None, primary_key=True)
    run_id: int = Field(foreign_key="run.id", index=True)
    key: str
    step: int
    value: float | None = None
    """None when the number was not finite; `non_finite` then says which it was."""
    non_finite: str = ""
    epoch: float
    tokens: int
    seconds: float


class Sample(SQLModel, table=True):
    """The model's answer to one validation prompt at one stage of a run."""

    __table_args__ = (UniqueConstraint("run_id", "stage", "step", "position"),)

    id: int | None = Field(default=None, primary_key=True)
    run_id: int = Field(foreign_key="run.id", index=True)
    stage: str
    step: int
    position: int
    prompt: str
    reference: str
    answer: str
    computed_in: str = Field(default="", sa_column_kwargs={"server_default": ""})
    """As `events.Sampled` says it; empty where the run did not."""


class RunEvent(SQLModel, table=True):
    """Something that befell a run, other than a number: a change of status, a phase, a failure."""

    __tablename__ = "happening"
    id: int | None = Field(default=None, primary_key=True)
    run_id: int = Field(foreign_key="run.id", index=True)
    kind: str = Field(index=True)
    data: dict[str, Any] = Field(default_factory=dict, sa_column=Column(JSON, nullable=False))
    at: datetime = Field(default_factory=now, sa_type=UTCDateTime)


class Dataset(SQLModel, table=True):
    """A file to learn from, as it was brought. How it is read makes a version of it."""

    __table_args__ = AUTOINCREMENT

    id: int | None = Field(default=None, primary_key=True)
    name: str = Field(unique=True)
    filename: str
    format: str
    bytes: int
    sha256: str
    """Of the file as it was brought."""
    source: str = "upload"
    """Where it came from: upload, starter, or an address in words."""
    status: DatasetStatus = Field(
        default=DatasetStatus.READY, sa_column=Column(text_enum(DatasetStatus), nullable=False)
    )
    version: int | None = None
    """The number of the version in use; None while there is none."""
    detected: dict[str, Any] = Field(default_factory=dict, sa_column=Column(JSON, nullable=False))
    """What was seen in it.

    `studio.intake.detection.row_shapes.DetectedMapping`. Empty where nothing was looked at.
    """
    owner_id: int | None = owner_column()
    created_at: datetime = Field(default_factory=now, sa_type=UTCDateTime)


class DatasetVersion(SQLModel, table=True):
    """The rows of a data set, made by one reading of its file. It never changes."""

    __tablename__ = "dataset_version"
    __table_args__ = (UniqueConstraint("dataset_id", "number"), AUTOINCREMENT)

    id: int | None = Field(default=None, primary_key=True)
    dataset_id: int = Field(foreign_key="dataset.id", ondelete="CASCADE")
    number: int
    kind: str
    """What its rows are: conversation, text, preference or judged."""
    mapping: dict[str, Any] = Field(default_factory=dict, sa_column=Column(JSON, nullable=False))
    """How the file was read: `studio.intake.mapping.Mapping`."""
    sha256: str
    """Of the rows. Empty until the files of an older home have been moved."""
    train_rows: int
    validation_rows: int = 0
    problems: list[dict[str, Any]] = Field(
        default_factory=list, sa_column=Column(JSON, nullable=False)
    )
    """What could not be used, or may do harm."""
    removed: dict[str, int] = Field(default_factory=dict, sa_column=Column(JSON, nullable=False))
    """Rows that could be used and were not wanted, by reason."""
    findings: list[dict[str, Any]] | None = Field(
        default=None, sa_column=Column(JSON(none_as_null=True))
    )
    """What is suspicious in its rows.

    `studio.intake.quality.dataset_checks.Finding`. None: nobody has looked.
    """
    created_at: datetime = Field(default_factory=now, sa_type=UTCDateTime)


class Model(SQLModel, table=True):
    """A model that runs can start from."""

    __table_args__ = AUTOINCREMENT

    id: int | None = Field(default=None, primary_key=True)
    name: str = Field(unique=True)
    kind: str
    """starter, folder, hub or run: where it comes from."""
    location: str = Field(sa_type=HomePath)
    """Its folder, or its name on the hub."""
    repo: str = ""
    """Of one that was downloaded: its name on the hub."""
    revision: str = ""
    """The commit it was downloaded at."""
    consent: dict[str, Any] | None = Field(default=None, sa_column=Column(JSON(none_as_null=True)))
    """Who allowed its own code to run, when, and which.

    See `studio.services.models.remote_code_trust`.
    """
    run_id: int | None = Field(default=None, foreign_key="run.id")
    facts: dict[str, Any] = Field(default_factory=dict, sa_column=Column(JSON, nullable=False))
    owner_id: int | None = owner_column()
    created_at: datetime = Field(default_factory=now, sa_type=UTCDateTime)


class FailingStep(BaseModel):
    """A step of a worker's tick that failed the last time it was tried."""

    model_config = ConfigDict(frozen=True)

    step: str
    """One of `studio.services.workers.workers.STEP_FAILURES`."""
    subject: str
    """What it was for, as `run 3`; empty for the worker itself."""
    error: str
    """The class of the error. Its message may hold a path; it is in the worker's log."""
    since: datetime


_FAILING_STEPS = TypeAdapter(list[FailingStep])


class Worker(SQLModel, table=True):
    """A worker and the last time it was heard of."""

    name: str = Field(primary_key=True)
    pid: int
    slots: int
    failing: list[FailingStep] = Field(
        default_factory=list,
        sa_column=Column(ValidatedJSON(_FAILING_STEPS), nullable=False, server_default="[]"),
    )
    """What it cannot do at present; it goes on with the rest."""
    failures: int = Field(default=0, sa_column_kwargs={"server_default": "0"})
    """How many steps have failed since it started."""
    beat_at: datetime = Field(default_factory=now, sa_type=UTCDateTime)
    hardware: dict[str, Any] | None = Field(default=None, sa_column=Column(JSON(none_as_null=True)))
    """What it trains on: `studio.hardware.Hardware`. It may be another machine than the pages'."""
