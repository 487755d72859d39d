"""The main tables. Rows are plain data; the operations on them are in `studio.services`."""

from datetime import datetime
from typing import Any

from pydantic import BaseModel, ConfigDict, TypeAdapter
from sqlalchemy import DDL, JSON, Column, Index, UniqueConstraint, event, false, text
from sqlmodel import Field, SQLModel

from studio.db.column_types import (
    AUTOINCREMENT,
    METRICS_ADAPTER,
    HomePath,
    UTCDateTime,
    ValidatedJSON,
    now,
)
from studio.db.owners import owner_column
from studio.db.states import DatasetStatus, RunCommand, RunStatus, SweepStatus, text_enum
from studio.hardware_usage.usage import HardwareUsage
from studio.methods import RECIPE_ADAPTER, AnyRecipe
from studio.recipe.search_space import SEARCH_SPACE_ADAPTER, SearchSpace


class Experiment(SQLModel, table=True):
    """A named recipe with notes and tags."""

    __table_args__ = AUTOINCREMENT

    id: int | None = Field(default=None, primary_key=True)
    name: str
    notes: str = ""
    tags: list[str] = Field(default_factory=list, sa_column=Column(JSON, nullable=False))
    recipe: AnyRecipe = Field(sa_column=Column(ValidatedJSON(RECIPE_ADAPTER), nullable=False))
    precision_reason: str = Field(default="", sa_column_kwargs={"server_default": ""})
    """Why the studio chose the recipe's precision; empty if a user chose it."""
    parent: str = Field(default="", sa_column_kwargs={"server_default": ""})
    """The parent of its recipe, such as `run:12` or `experiment:3`; it may have been deleted."""
    owner_id: int | None = owner_column()
    created_at: datetime = Field(default_factory=now, sa_type=UTCDateTime)


class Study(SQLModel, table=True):
    """A precision study: one recipe in several precisions and with several seeds."""

    __table_args__ = AUTOINCREMENT

    id: int | None = Field(default=None, primary_key=True)
    experiment_id: int = Field(foreign_key="experiment.id", index=True, ondelete="CASCADE")
    name: str
    modes: list[str] = Field(default_factory=list, sa_column=Column(JSON, nullable=False))
    seeds: list[int] = Field(default_factory=list, sa_column=Column(JSON, nullable=False))
    max_steps: int | None = None
    """The length of each run; None uses the recipe's."""
    owner_id: int | None = owner_column()
    created_at: datetime = Field(default_factory=now, sa_type=UTCDateTime)


class Run(SQLModel, table=True):
    """One execution of an experiment: queued, trained, measured."""

    # Rows are wide, so covering indexes hold all columns that lists filter and metrics aggregate.
    __table_args__ = (
        Index("run_by_status", "status", "id", "archived_at", "deleted_at"),
        Index("run_in_words", "id", "name", "notes", "archived_at", "deleted_at"),
        # Postgres cannot compare JSON.
        Index("run_by_tags", "tags", "deleted_at").ddl_if(dialect="sqlite"),
        Index("run_took", "finished_at", "claimed_at", "tokens"),
        Index(
            *("run_by_end", "status", "finished_at"),
            *("study_id", "sweep_id", "archived_at", "deleted_at"),
        ),
        # Prevents creating the same trial of a sweep twice.
        Index("run_of_sweep", "sweep_id", "trial", unique=True),
        AUTOINCREMENT,
    )

    id: int | None = Field(default=None, primary_key=True)
    experiment_id: int = Field(foreign_key="experiment.id", index=True)
    study_id: int | None = Field(default=None, foreign_key="study.id", index=True)
    sweep_id: int | None = Field(default=None, foreign_key="sweep.id")
    trial: int | None = None
    """The number of its trial in its sweep, from 0."""
    is_pruned: bool = Field(default=False, sa_column_kwargs={"server_default": false()})
    """Whether its sweep stopped it early because it was unpromising."""
    name: str
    recipe: AnyRecipe = Field(sa_column=Column(ValidatedJSON(RECIPE_ADAPTER), nullable=False))
    precision_reason: str = Field(default="", sa_column_kwargs={"server_default": ""})
    """Why the studio chose the recipe's precision; empty if a user chose it."""
    dataset_version_id: int | None = Field(
        default=None, foreign_key="dataset_version.id", index=True
    )
    """The dataset version it trains on, fixed at submission; None once deleted."""
    status: RunStatus = Field(
        default=RunStatus.QUEUED, sa_column=Column(text_enum(RunStatus), nullable=False)
    )
    priority: int = 0
    """Runs with a higher priority start first."""
    rank: int | None = None
    """Its position among runs of the same priority if a user moved it; otherwise its ID decides."""
    is_held: bool = False
    """Whether it waits until a user releases it."""
    slots: int = 1
    """How many of the machine's slots it takes; it always trains on one GPU."""
    asked: RunCommand | None = Field(default=None, sa_column=Column(text_enum(RunCommand)))
    """The last command, until it is carried out."""
    attempt: int = 0
    """How often a worker has claimed it."""
    resumes: bool = False
    """Whether the next attempt resumes from a checkpoint."""
    worker: str = ""
    lease_until: datetime | None = Field(default=None, sa_type=UTCDateTime)
    """When the lease of its worker expires, so that another worker may take over."""
    handle: str = ""
    """The launcher's handle of its training process; empty if there is none."""
    gpu: int | None = None
    """The GPU it was given; None on a machine without GPUs."""
    checkpoint_step: int | None = None
    """The step of its newest checkpoint."""
    resumed_step: int = 0
    """The step that its current attempt resumed from."""
    events_offset: int = 0
    phase: str = ""
    """What it does other than training: loading, tokenising, saving."""
    step: int = 0
    total_steps: int | None = None
    epoch: float = 0
    tokens: int = 0
    metrics: dict[str, float] = Field(
        default_factory=dict, sa_column=Column(ValidatedJSON(METRICS_ADAPTER), nullable=False)
    )
    """The newest value of each metric."""
    resolved: dict[str, Any] = Field(default_factory=dict, sa_column=Column(JSON, nullable=False))
    """The actual dtypes, counts and versions; empty until the trainer is built."""
    estimate: dict[str, Any] = Field(
        default_factory=dict, sa_column=Column(JSON, nullable=False, server_default="{}")
    )
    """The estimate of memory and time at submission."""
    error_code: str = ""
    error_message: str = ""
    error_hint: str = ""
    notes: str = Field(default="", sa_column_kwargs={"server_default": ""})
    tags: list[str] = Field(
        default_factory=list, sa_column=Column(JSON, nullable=False, server_default="[]")
    )
    archived_at: datetime | None = Field(default=None, sa_type=UTCDateTime)
    """When it was archived; lists show archived runs only on request."""
    deleted_at: datetime | None = Field(default=None, sa_type=UTCDateTime)
    """When it was moved to the trash, from which it can be restored for some weeks."""
    owner_id: int | None = owner_column()
    created_at: datetime = Field(default_factory=now, sa_type=UTCDateTime)
    claimed_at: datetime | None = Field(default=None, sa_type=UTCDateTime)
    started_at: datetime | None = Field(default=None, sa_type=UTCDateTime)
    first_step_at: datetime | None = Field(default=None, sa_type=UTCDateTime)
    finished_at: datetime | None = Field(default=None, sa_type=UTCDateTime)


# SQLite finds the few queued runs by `run_by_status`, and sorts them faster than a page is drawn.
event.listen(
    Run.__table__,  # type: ignore[attr-defined] # SQLModel's table
    "after_create",
    DDL(  # type: ignore[no-untyped-call] # upstream's own
        "CREATE INDEX run_in_queue ON run (status, priority DESC, coalesce(rank, id))"
    ).execute_if(dialect="postgresql"),
)


class Attempt(SQLModel, table=True):
    """One execution of a run: its worker, start and outcome."""

    __table_args__ = (UniqueConstraint("run_id", "number"),)

    id: int | None = Field(default=None, primary_key=True)
    run_id: int = Field(foreign_key="run.id", index=True)
    number: int
    worker: str
    from_step: int = 0
    began_at: datetime = Field(default_factory=now, sa_type=UTCDateTime)
    ended_at: datetime | None = Field(default=None, sa_type=UTCDateTime)
    outcome: str = ""
    """The run's status afterwards, or `lost` if its process disappeared."""
    exit_code: int | None = None
    """None if unknown; negative for a signal."""
    gpu: str = Field(default="", index=True, sa_column_kwargs={"server_default": ""})
    """How CUDA names the GPU that it had, by UUID where that is known; empty without one."""
    error_code: str = Field(default="", sa_column_kwargs={"server_default": ""})
    """Why it failed, even if the run started again."""


class QuarantinedGpu(SQLModel, table=True):
    """A GPU that no run gets, or that was released."""

    __tablename__ = "quarantined_gpu"

    gpu: str = Field(primary_key=True)
    """How CUDA names it."""
    reason: str = ""
    since: datetime = Field(default_factory=now, sa_type=UTCDateTime)
    released_at: datetime | None = Field(default=None, sa_type=UTCDateTime)
    """When it was released; what failed on it before no longer counts."""


_NON_FINITE_ONLY: dict[str, Any] = dict.fromkeys(
    ("sqlite_where", "postgresql_where"), text("value IS NULL")
)
"""The condition of a partial index on non-finite values."""


class Metric(SQLModel, table=True):
    """One metric value at one step. Live streams follow new values by their IDs."""

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
    """None if the value is not finite: see `non_finite`."""
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
    """As in `events.Sampled`; empty if the run did not report it."""


class RunEvent(SQLModel, table=True):
    """An event in a run's history: a change of status, a phase, a failure."""

    __tablename__ = "happening"
    id: int | None = Field(default=None, primary_key=True)
    run_id: int = Field(foreign_key="run.id", index=True)
    kind: str = Field(index=True)
    data: dict[str, Any] = Field(default_factory=dict, sa_column=Column(JSON, nullable=False))
    at: datetime = Field(default_factory=now, sa_type=UTCDateTime)


class Dataset(SQLModel, table=True):
    """An uploaded data file. Each mapping of its columns creates a version."""

    __table_args__ = AUTOINCREMENT

    id: int | None = Field(default=None, primary_key=True)
    name: str = Field(unique=True)
    filename: str
    format: str
    bytes: int
    sha256: str
    """The checksum of the uploaded file."""
    source: str = "upload"
    """The source: upload, starter, or a description of its address."""
    status: DatasetStatus = Field(
        default=DatasetStatus.READY, sa_column=Column(text_enum(DatasetStatus), nullable=False)
    )
    version: int | None = None
    """The number of the version in use; None if there is none yet."""
    detected: dict[str, Any] = Field(default_factory=dict, sa_column=Column(JSON, nullable=False))
    """The detected format.

    A `studio.intake.detection.row_shapes.DetectedMapping`; empty if detection did not run.
    """
    owner_id: int | None = owner_column()
    created_at: datetime = Field(default_factory=now, sa_type=UTCDateTime)


class DatasetVersion(SQLModel, table=True):
    """The rows that one mapping produced from a dataset's file. It never changes."""

    __tablename__ = "dataset_version"
    __table_args__ = (UniqueConstraint("dataset_id", "number"), AUTOINCREMENT)

    id: int | None = Field(default=None, primary_key=True)
    dataset_id: int = Field(foreign_key="dataset.id", ondelete="CASCADE")
    number: int
    kind: str
    """The kind of its rows: conversation, text, preference, judged, steps, tokens, task, pairs,
    images."""
    mapping: dict[str, Any] = Field(default_factory=dict, sa_column=Column(JSON, nullable=False))
    """How the columns become rows: a `studio.intake.mapping.Mapping`."""
    sha256: str
    """The checksum of the rows; empty until the files of an older home are migrated."""
    train_rows: int
    validation_rows: int = 0
    problems: list[dict[str, Any]] = Field(
        default_factory=list, sa_column=Column(JSON, nullable=False)
    )
    """Rows that could not be used, and possible problems."""
    removed: dict[str, int] = Field(default_factory=dict, sa_column=Column(JSON, nullable=False))
    """Counts of usable rows that the mapping excluded, by reason."""
    findings: list[dict[str, Any]] | None = Field(
        default=None, sa_column=Column(JSON(none_as_null=True))
    )
    """Possible problems in its rows.

    A list of `studio.intake.quality.dataset_checks.Finding`; None if not checked yet.
    """
    answers: dict[str, Any] | None = Field(default=None, sa_column=Column(JSON(none_as_null=True)))
    """What the answers of its training rows are.

    A `studio.intake.quality.answer_facts.AnswerFacts`; None if not checked yet, or by an earlier
    release.
    """
    created_at: datetime = Field(default_factory=now, sa_type=UTCDateTime)


class Model(SQLModel, table=True):
    """A model that runs can start from."""

    __table_args__ = AUTOINCREMENT

    id: int | None = Field(default=None, primary_key=True)
    name: str = Field(unique=True)
    kind: str
    """The source: starter, folder, hub or run."""
    location: str = Field(sa_type=HomePath)
    """The folder, or the name on the hub."""
    repo: str = ""
    """The name on the hub of a downloaded model."""
    revision: str = ""
    """The commit of a downloaded model."""
    consent: dict[str, Any] | None = Field(default=None, sa_column=Column(JSON(none_as_null=True)))
    """Who allowed its custom code to run, when, and which code.

    See `studio.services.models.remote_code_trust`.
    """
    run_id: int | None = Field(default=None, foreign_key="run.id")
    facts: dict[str, Any] = Field(default_factory=dict, sa_column=Column(JSON, nullable=False))
    owner_id: int | None = owner_column()
    created_at: datetime = Field(default_factory=now, sa_type=UTCDateTime)


class FailingStep(BaseModel):
    """A step of the worker's loop that failed the last time it ran."""

    model_config = ConfigDict(frozen=True)

    step: str
    """One of `studio.services.workers.workers.STEP_FAILURES`."""
    subject: str
    """What it was for, such as `run 3`; empty for the worker itself."""
    error: str
    """The class of the error. Its message may contain a path, so it is only in the worker's log."""
    since: datetime


_FAILING_STEPS = TypeAdapter(list[FailingStep])

_USAGE = TypeAdapter(HardwareUsage)


class Worker(SQLModel, table=True):
    """A worker, with its last heartbeat."""

    name: str = Field(primary_key=True)
    pid: int
    slots: int
    failing: list[FailingStep] = Field(
        default_factory=list,
        sa_column=Column(ValidatedJSON(_FAILING_STEPS), nullable=False, server_default="[]"),
    )
    """The steps that currently fail; the others continue."""
    failures: int = Field(default=0, sa_column_kwargs={"server_default": "0"})
    """How many steps have failed since the worker started."""
    beat_at: datetime = Field(default_factory=now, sa_type=UTCDateTime)
    hardware: dict[str, Any] | None = Field(default=None, sa_column=Column(JSON(none_as_null=True)))
    """Its `studio.hardware.Hardware`; it may run on another machine than the web process."""


class HardwareSample(SQLModel, table=True):
    """The load of a worker's machine; kept for an hour."""

    __tablename__ = "hardware_sample"

    id: int | None = Field(default=None, primary_key=True)
    worker: str
    usage: HardwareUsage = Field(sa_column=Column(ValidatedJSON(_USAGE), nullable=False))
    at: datetime = Field(default_factory=now, sa_type=UTCDateTime, index=True)


class RunHardwareSample(SQLModel, table=True):
    """The load of its machine while a run trained; a run keeps a limited number of them."""

    __tablename__ = "run_hardware_sample"
    __table_args__ = (Index("run_hardware_sample_order", "run_id", "at"),)

    id: int | None = Field(default=None, primary_key=True)
    run_id: int = Field(foreign_key="run.id", ondelete="CASCADE")
    usage: HardwareUsage = Field(sa_column=Column(ValidatedJSON(_USAGE), nullable=False))
    at: datetime = Field(sa_type=UTCDateTime)


class OpenAIFile(SQLModel, table=True):
    """Why a dataset uploaded as a file cannot be used for training."""

    __tablename__ = "openai_file"

    dataset_id: int = Field(primary_key=True, foreign_key="dataset.id", ondelete="CASCADE")
    problem: str


class OpenAIJob(SQLModel, table=True):
    """A run created as a fine-tuning job."""

    __tablename__ = "openai_job"

    run_id: int = Field(primary_key=True, foreign_key="run.id", ondelete="CASCADE")
    suffix: str = ""
    pairs: dict[str, str] = Field(default_factory=dict, sa_column=Column(JSON, nullable=False))
    """The metadata of the job."""
    training_id: int
    """The dataset of the training file; it and `validation_id` may have been deleted."""
    validation_id: int | None = None
    is_validating: bool = Field(default=False, index=True)
    """Whether the run waits until its files are processed."""


def _json_list() -> Any:  # noqa: ANN401 -- SQLModel's Field returns Any
    return Field(default_factory=list, sa_column=Column(JSON, nullable=False))


class Sweep(SQLModel, table=True):
    """A search for the best settings: many runs of one recipe with some settings varied."""

    __table_args__ = AUTOINCREMENT

    id: int | None = Field(default=None, primary_key=True)
    experiment_id: int = Field(foreign_key="experiment.id", index=True, ondelete="CASCADE")
    name: str
    recipe: AnyRecipe = Field(sa_column=Column(ValidatedJSON(RECIPE_ADAPTER), nullable=False))
    """The recipe of every run, except for the settings that vary."""
    space: SearchSpace = Field(
        sa_column=Column(ValidatedJSON(SEARCH_SPACE_ADAPTER), nullable=False)
    )
    strategy: str
    """grid, random or tpe: see `studio.services.sweeps.sweep_preview`."""
    count: int
    """The number of runs."""
    metric: str = "eval_loss"
    direction: str = "minimise"
    seed: int = 0
    """The seed for sampling settings."""
    is_pruning: bool = False
    """Whether a run that looks hopeless is stopped early."""
    parallel: int = 1
    """How many of its runs may be queued or training at once."""
    status: SweepStatus = Field(
        default=SweepStatus.RUNNING,
        sa_column=Column(text_enum(SweepStatus), nullable=False, index=True),
    )
    submitted: int = 0
    """How many runs it has queued. Counted, because deleted runs are not created again."""
    planned: list[dict[str, Any]] = _json_list()
    """The settings of each run by dotted names; empty if they depend on earlier results."""
    refused: list[dict[str, Any]] = _json_list()
    """Planned settings that cannot run on this machine."""
    importance: dict[str, float] = Field(
        default_factory=dict, sa_column=Column(ValidatedJSON(METRICS_ADAPTER), nullable=False)
    )
    """The importance of each setting; empty until enough runs have finished."""
    error: str = ""
    """Why the sweep failed."""
    owner_id: int | None = owner_column()
    created_at: datetime = Field(default_factory=now, sa_type=UTCDateTime)
    finished_at: datetime | None = Field(default=None, sa_type=UTCDateTime)
