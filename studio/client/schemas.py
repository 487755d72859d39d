"""Schemas of API responses; unknown fields from a newer studio are kept."""

from datetime import datetime
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from studio.client import notebook

T = TypeVar("T")

FINAL_STATUSES = frozenset({"succeeded", "failed", "cancelled"})


class Schema(BaseModel):
    model_config = ConfigDict(frozen=True, extra="allow")

    def _repr_html_(self) -> str:
        """Show its single values as a table, in a notebook."""
        return notebook.fields(dict(self))


class Page(Schema, Generic[T]):
    data: list[T]
    has_more: bool
    next_after: int | None

    def _repr_html_(self) -> str:
        rows = [dict(one) for one in self.data if isinstance(one, Schema)]
        names = (
            [name for name, value in rows[0].items() if notebook.is_single(value)] if rows else []
        )
        return notebook.table(names, [[row.get(name) for name in names] for row in rows])


class ErrorDetail(Schema):
    """Why something failed."""

    code: str
    message: str
    hint: str


class ChosenPrecision(Schema):
    """The precision of a run, and who chose it."""

    name: str
    chosen_by: str
    """`user`, or `studio` if the recipe omits the precision or says `auto`."""
    reason: str


class Run(Schema):
    id: int
    experiment_id: int
    name: str
    status: str
    """queued, starting, running, pausing, paused, stopping, succeeded, failed or cancelled."""
    attempt: int
    step: int
    total_steps: int | None
    progress: float | None
    eta_seconds: float | None
    total_seconds: float | None
    queue_position: int | None
    checkpoint_step: int | None
    metrics: dict[str, float]
    """The newest value of each metric, possibly NaN or infinite."""
    error: ErrorDetail | None
    recipe: dict[str, Any]
    precision: ChosenPrecision
    resolved: dict[str, Any]
    notes: str
    tags: list[str]
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None

    @property
    def is_final(self) -> bool:
        return self.status in FINAL_STATUSES

    @property
    def summary(self) -> str:
        """How far it is and its losses, in a line."""
        steps = f"step {self.step}" + (f" of {self.total_steps}" if self.total_steps else "")
        left = [f"{self.eta_seconds:.0f} s left"] if self.eta_seconds else []
        losses = [
            f"{name} {notebook.text(self.metrics[name])}"
            for name in ("loss", "eval_loss")
            if name in self.metrics
        ]
        return ", ".join([steps, *left, *losses])

    @property
    def line(self) -> str:
        """Its name, its status and how far it is."""
        return f"{self.name} #{self.id}: {self.status}, {self.summary}"

    def _repr_html_(self) -> str:
        lines = [self.summary]
        if self.error is not None:
            lines.append(f"{self.error.message} {self.error.hint}".strip())
        title = f"{self.name} #{self.id}: {self.status}"
        return notebook.card(title, self.progress, lines, self.metrics)


class Curve(Schema):
    """A metric along an axis; None where it has no value."""

    mean: list[float | None]
    min: list[float | None]
    max: list[float | None]
    non_finite: list[float]
    """Positions on the axis where it was not finite."""


class Curves(Schema):
    x: list[float]
    series: dict[str, Curve]

    def _repr_html_(self) -> str:
        return notebook.chart(self.x, {name: one.mean for name, one in self.series.items()})


class File(Schema):
    name: str
    bytes: int


class Tracker(Schema):
    """Where a run is sent besides the studio, and how far."""

    key: str
    tracker: str
    """csv, tensorboard, mlflow, wandb or trackio."""
    title: str
    progress: str
    """waiting, sending, sent, failing or given_up."""
    step: int | None
    """The last step that was sent."""
    place: str
    command: str
    """The command that shows it; empty if `place` is an address."""
    error: str
    hint: str


class Experiment(Schema):
    id: int
    name: str
    notes: str
    tags: list[str]
    recipe: dict[str, Any]
    created_at: datetime


class Dataset(Schema):
    id: int
    name: str
    filename: str
    bytes: int
    status: str
    version: int | None
    kind: str | None
    train_rows: int
    validation_rows: int
    created_at: datetime


class Model(Schema):
    id: int
    name: str
    kind: str
    location: str
    run_id: int | None
    created_at: datetime


class Task(Schema):
    """A background task."""

    id: int
    kind: str
    title: str
    status: str
    progress: float
    result: dict[str, Any]
    error: ErrorDetail | None

    @property
    def is_final(self) -> bool:
        return self.status in FINAL_STATUSES


class Sweep(Schema):
    id: int
    name: str
    status: str
    count: int
    submitted: int
    metric: str
    best: dict[str, Any] | None = None
    """The best trial; only `get` returns it."""
    trials: list[dict[str, Any]] = Field(default_factory=list)


class SweepPreview(Schema):
    """The size and duration of a sweep before it starts."""

    count: int
    seconds: float | None
    left_out: int


class Endpoint(Schema):
    """A model that is served under a name of its own."""

    id: int
    name: str
    engine: str
    run_id: int
    step: int | None
    export_id: int | None
    state: str
    """starting, ready, idle, failing or stopped."""
    note: str
    error: str
    idle_minutes: int | None
    requests: int
    last_used_at: datetime | None


class ComparisonCell(Schema):
    value: float | None
    delta: float | None
    verdict: str


class Comparison(Schema):
    runs: list[int]
    base: int
    differing: dict[str, list[Any]]
    metrics: dict[str, list[ComparisonCell]]


class QueuedRun(Schema):
    id: int
    name: str
    status: str
    queue_position: int | None


class LoadedModel(Schema):
    model: str
    leaves_in_seconds: float | None
    is_leaving: bool
    slots: int


class Queue(Schema):
    slots: int
    used: int
    loaded: LoadedModel | None
    """The model loaded in the inference service."""
    live: list[QueuedRun]
    waiting: list[QueuedRun]


class Export(Schema):
    """A run's model in another format, and what the conversion changed."""

    id: int
    run_id: int
    kind: str
    dtype: str
    status: str
    phase: str
    progress: float
    measured: dict[str, float]
    """Empty until it has succeeded."""
    files: list[File]


class HubPush(Schema):
    """The upload of an export to the Hugging Face hub."""

    task_id: int
    repo: str
    private: bool
    status: str
    phase: str
    progress: float
    revision: str
    """The commit on the hub; empty until it has succeeded."""
    url: str


class ImportedKey(Schema):
    """What became of one key of another tool's file."""

    key: str
    value: str
    settings: dict[str, str]
    note: str


class ImportedRecipe(Schema):
    """The recipe that another tool's file describes, and what became of its keys."""

    tool: str
    method: str
    name: str
    recipe: dict[str, Any]
    mapped: list[ImportedKey]
    different: list[ImportedKey]
    absent: list[ImportedKey]
    assumed: list[ImportedKey]
    remarks: list[str]
