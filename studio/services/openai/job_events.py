"""Events and checkpoints of a job, as the OpenAI API has them.

A run's history and its metrics form one list, newest first; an event's id is the paging cursor.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal

from sqlmodel import Session, col, select

from studio.db.states import RunStatus
from studio.db.tables import Metric, Run, RunEvent
from studio.errors import InvalidError
from studio.services.openai.file_objects import METRIC_NAMES
from studio.services.runs import artifacts, run_events

_ID = re.compile(r"ftevent-\d{1,18}-([hs])(\d{1,18})")
_LEVELS: dict[str, Literal["warn", "error"]] = {"failed": "error", "alarm": "warn"}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEvent:
    """An event of a job."""

    id: str
    at: datetime
    message: str
    level: Literal["info", "warn", "error"] = "info"
    type: Literal["message", "metrics"] = "message"
    data: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCheckpoint:
    """A step at which a run's model was saved."""

    id: str
    at: datetime
    step: int
    metrics: dict[str, float]
    is_last: bool
    """Whether it is the run's final model."""


def list_events(db: Session, run: Run, *, limit: int, after: str = "") -> list[JobEvent]:
    """Return the events before the event `after`, newest first."""
    cursor = _cursor(db, run, after) if after else None
    history_events = [
        _event_from_run(run, event) for event in _load_run_events(db, run, cursor, limit)
    ]
    metric_events = [
        _event_from_metrics(run, step, rows)
        for step, rows in _load_metric_steps(db, run, cursor, limit)
    ]
    events = sorted([*history_events, *metric_events], key=_sort_key, reverse=True)
    return [event for event in events if cursor is None or _sort_key(event) < cursor][:limit]


def list_checkpoints(db: Session, run: Run, folder: Path) -> list[JobCheckpoint]:
    """Return the checkpoints of a run, newest first."""
    steps = {checkpoint.step for checkpoint in artifacts.list_checkpoints(folder)}
    ended = run.status is RunStatus.SUCCEEDED
    steps |= {run.step} if ended else set()
    return [
        _job_checkpoint(db, run, step, is_last=ended and step == run.step)
        for step in sorted(steps, reverse=True)
    ]


def _cursor(db: Session, run: Run, after: str) -> tuple[datetime, str]:
    match = _ID.fullmatch(after)
    kind, number = (match[1], int(match[2])) if match else ("", 0)
    if kind == "h" and (run_event := db.get(RunEvent, number)):
        return _sort_key(_event_from_run(run, run_event))
    if kind == "s" and (rows := _metrics_at_step(db, run, number)):
        return _sort_key(_event_from_metrics(run, number, rows))
    raise InvalidError(f"Event {after[:100]} does not exist.", param="after")


def _sort_key(event: JobEvent) -> tuple[datetime, str]:
    # Metrics of the same time are sorted by step.
    prefix, _, number = event.id.rpartition("-")
    return event.at, f"{prefix}-{number[0]}{int(number[1:]):020d}"


def _load_run_events(
    db: Session, run: Run, cursor: tuple[datetime, str] | None, limit: int
) -> Sequence[RunEvent]:
    query = select(RunEvent).where(RunEvent.run_id == run.id)
    if cursor:
        query = query.where(col(RunEvent.at) <= cursor[0])
    # One more than the limit, since the cursor itself may be included.
    return db.exec(query.order_by(col(RunEvent.id).desc()).limit(limit + 1)).all()


def _load_metric_steps(
    db: Session, run: Run, cursor: tuple[datetime, str] | None, limit: int
) -> Iterable[tuple[int, list[Metric]]]:
    query = select(Metric.step).where(Metric.run_id == run.id, col(Metric.key).in_(METRIC_NAMES))
    if cursor:
        query = query.where(
            col(Metric.seconds) <= (cursor[0] - _metrics_start(run)).total_seconds()
        )
    newest_first = query.distinct().order_by(col(Metric.step).desc()).limit(limit + 1)
    for step in db.exec(newest_first).all():
        yield step, _metrics_at_step(db, run, step)


def _metrics_at_step(db: Session, run: Run, step: int) -> list[Metric]:
    query = select(Metric).where(Metric.run_id == run.id, Metric.step == step)
    return list(db.exec(query.where(col(Metric.key).in_(METRIC_NAMES)).order_by(col(Metric.id))))


def _event_from_run(run: Run, run_event: RunEvent) -> JobEvent:
    return JobEvent(
        id=f"ftevent-{run.id}-h{run_event.id}",
        at=run_event.at,
        message=run_events.to_event(run_event).words,
        level=_LEVELS.get(run_event.kind, "info"),
        data=run_event.data,
    )


def _event_from_metrics(run: Run, step: int, rows: Sequence[Metric]) -> JobEvent:
    values = _metric_values(rows)
    labels = {"train_loss": "training loss", "valid_loss": "validation loss"}
    losses = [f"{word}={values[name]:.4f}" for name, word in labels.items() if name in values]
    total_text = f"/{run.total_steps}" if run.total_steps else ""
    return JobEvent(
        id=f"ftevent-{run.id}-s{step}",
        at=_metrics_start(run)
        + timedelta(seconds=max((metric.seconds for metric in rows), default=0.0)),
        message=f"Step {step}{total_text}: {', '.join(losses) or 'no finite loss'}",
        type="metrics",
        data={"step": step, "total_steps": run.total_steps, **values},
    )


def _metrics_start(run: Run) -> datetime:
    """Return the time from which its metrics count seconds."""
    return run.started_at or run.created_at


def _job_checkpoint(db: Session, run: Run, step: int, *, is_last: bool) -> JobCheckpoint:
    before = select(Metric).where(Metric.run_id == run.id, col(Metric.step) <= step)
    newest_first = before.order_by(col(Metric.step).desc()).limit(1)
    latest = (db.exec(newest_first.where(Metric.key == key)).first() for key in METRIC_NAMES)
    rows = [metric for metric in latest if metric is not None]
    return JobCheckpoint(
        id=f"ftckpt_{run.id}_{step}",
        at=_metrics_start(run)
        + timedelta(seconds=max((metric.seconds for metric in rows), default=0.0)),
        step=step,
        metrics={"step": step, **_metric_values(rows)},
        is_last=is_last,
    )


def _metric_values(rows: Iterable[Metric]) -> dict[str, float]:
    values = {METRIC_NAMES[metric.key]: metric.value for metric in rows if metric.value is not None}
    # Every validation of the studio uses all validation rows.
    full = {f"full_{name}": value for name, value in values.items() if name.startswith("valid")}
    return values | full
