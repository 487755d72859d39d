"""The JSON shapes that several resources share."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, Generic, TypeVar

from fastapi import Query
from pydantic import BaseModel, ConfigDict, Field
from sqlmodel import Session

from studio.db.states import Ask, RunStatus
from studio.db.tables import Run
from studio.methods import AnyRecipe
from studio.services import progress, queue

T = TypeVar("T")

Limit = Annotated[int, Query(ge=1, le=500)]
After = Annotated[int | None, Query(ge=0)]
Name = Annotated[str, Field(min_length=1, max_length=200)]


class Body(BaseModel):
    """What a program sends: unknown fields are refused, and numbers are numbers."""

    model_config = ConfigDict(extra="forbid", strict=True, use_attribute_docstrings=True)


class Out(BaseModel):
    """What the studio answers. Non-finite numbers are told as strings."""

    model_config = ConfigDict(from_attributes=True, ser_json_inf_nan="strings")


class Listing(Out, Generic[T]):
    """One page of a list, newest first."""

    data: list[T]
    has_more: bool
    next_after: int | None


class ErrorOut(Out):
    code: str
    message: str
    hint: str


class Phases(Out):
    """Where the time went."""

    queued_seconds: float | None
    launch_seconds: float | None
    first_step_seconds: float | None
    total_seconds: float | None


class RunBrief(Out):
    """What changes while a run goes on."""

    id: int
    name: str
    status: RunStatus
    attempt: int
    asked: Ask | None
    """What a person has asked of it, until that is done."""
    checkpoint_step: int | None
    """The step it can go on from."""
    phase: str
    step: int
    total_steps: int | None
    epoch: float
    tokens: int
    progress: float | None
    eta_seconds: float | None
    queue_position: int | None
    priority: int
    is_held: bool
    metrics: dict[str, float]
    error: ErrorOut | None


class RunOut(RunBrief):
    """Everything about a run but its curves."""

    experiment_id: int
    recipe: AnyRecipe
    resolved: dict[str, Any]
    phases: Phases
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None


def page_of(rows: Sequence[Any], limit: int, shown: Sequence[T]) -> Listing[T]:
    """Make a page from one row more than asked for, which only says that there are more."""
    more = len(rows) > limit
    last = rows[limit - 1].id if more else None
    return Listing(data=list(shown[:limit]), has_more=more, next_after=last)


def run_brief(db: Session, run: Run) -> RunBrief:
    return RunBrief.model_validate(_brief(db, run))


def run_out(db: Session, run: Run) -> RunOut:
    whole = {
        "experiment_id": run.experiment_id,
        "recipe": run.recipe,
        "resolved": run.resolved,
        "phases": progress.of(run),
        "created_at": run.created_at,
        "started_at": run.started_at,
        "finished_at": run.finished_at,
    }
    return RunOut.model_validate(_brief(db, run) | whole)


def _brief(db: Session, run: Run) -> dict[str, Any]:
    made = progress.of(run)
    error = {"code": run.error_code, "message": run.error_message, "hint": run.error_hint}
    return {
        "id": run.id,
        "name": run.name,
        "status": run.status,
        "attempt": run.attempt,
        "asked": run.asked,
        "checkpoint_step": run.checkpoint_step,
        "phase": run.phase,
        "step": run.step,
        "total_steps": run.total_steps,
        "epoch": run.epoch,
        "tokens": run.tokens,
        "progress": made.share,
        "eta_seconds": made.eta_seconds,
        "queue_position": queue.position(db, run),
        "priority": run.priority,
        "is_held": run.is_held,
        "metrics": run.metrics,
        "error": error if run.error_code else None,
    }
