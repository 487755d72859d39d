"""The history of a run: every kind of event, its details and its sentence."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, computed_field, create_model

from studio.db.tables import RunEvent
from studio.schemas.field_docs import FieldDocs


class _EventDetails(FieldDocs, BaseModel):
    """Details of an event. Any may be missing, because older versions recorded fewer."""

    model_config = ConfigDict(ser_json_inf_nan="strings")


class Nothing(_EventDetails):
    """No details."""


class Cause(_EventDetails):
    because: str = ""
    """Why the run returned to the queue automatically; empty if a person queued it."""
    attempt: int | None = None


class OfAttempt(_EventDetails):
    attempt: int | None = None


class CommandRequested(_EventDetails):
    asked: str = ""
    """`cancel`, `keep`, `pause` or `drain`."""


class AtStep(_EventDetails):
    step: int | None = None


class Result(_EventDetails):
    stopped_at: int | None = None
    """The step at which a person stopped the run and kept its model."""


class Reason(_EventDetails):
    code: str = ""
    message: str = ""
    hint: str = ""


class Priority(_EventDetails):
    priority: int | None = None


class Place(_EventDetails):
    place: int | None = None
    """Counted from 1 among the queued runs of its priority."""


class OnwardFrom(_EventDetails):
    step: int | None = None
    attempt: int | None = None


class NewPrecision(_EventDetails):
    precision: str = ""


class Seen(Reason):
    step: int | None = None
    module: str = ""


class Event(BaseModel):
    model_config = ConfigDict(from_attributes=True)

    id: int
    at: datetime
    kind: str
    data: Any

    @computed_field  # type: ignore[prop-decorator] # as pydantic documents it
    @property
    def words(self) -> str:
        """What happened, in one sentence."""
        known = _EVENT_KINDS.get(self.kind)
        return (
            known.describe(self.data) if known else f"{self.kind.replace('_', ' ').capitalize()}."
        )


class Other(Event):
    """A kind that this version does not know; programs should ignore it."""

    data: dict[str, Any]


_REQUEST_SENTENCES = {
    "cancel": "Asked to stop.",
    "keep": "Asked to stop and keep the model trained so far.",
    "pause": "Asked to pause.",
    "drain": "Asked to pause because its worker is shutting down.",
}


def _at_step(step: int | None) -> str:
    return "" if step is None else f" at step {step}"


def _seen_at_step(step: int | None) -> str:
    return "" if step is None else f" Seen at step {step}."


@dataclass(frozen=True, slots=True)
class _EventKind:
    """What is recorded with a kind of event, and its sentence."""

    details: type[_EventDetails]
    describe: Callable[[Any], str]
    schema_name: str = ""
    """The name of its class, if it is not that of the kind."""


_EVENT_KINDS = {
    "queued": _EventKind(
        Cause,
        lambda it: f"Back in the queue. {it.because}" if it.because else "Added to the queue.",
    ),
    "starting": _EventKind(
        OfAttempt, lambda it: f"Claimed by a worker, attempt {it.attempt or 1}."
    ),
    "running": _EventKind(Nothing, lambda _: "Started training."),
    "stopping": _EventKind(
        CommandRequested, lambda it: _REQUEST_SENTENCES.get(it.asked, "Asked to stop.")
    ),
    "paused": _EventKind(AtStep, lambda it: f"Paused{_at_step(it.step)}."),
    "succeeded": _EventKind(
        Result,
        lambda it: (
            f"Stopped and kept the model{_at_step(it.stopped_at)}." if it.stopped_at else "Done."
        ),
    ),
    "failed": _EventKind(Reason, lambda it: it.message or "Failed."),
    "cancelled": _EventKind(AtStep, lambda it: f"Cancelled{_at_step(it.step)}."),
    "held": _EventKind(Nothing, lambda _: "Held until it is released."),
    "released": _EventKind(Nothing, lambda _: "Released."),
    "prioritised": _EventKind(Priority, lambda it: f"Priority set to {it.priority}."),
    "moved": _EventKind(Place, lambda it: f"Moved to position {it.place} within its priority."),
    "checkpointed": _EventKind(AtStep, lambda it: f"Wrote a checkpoint{_at_step(it.step)}."),
    "restarted": _EventKind(
        Nothing, lambda _: "Restarted: earlier metrics and answers were deleted."
    ),
    "resumed": _EventKind(OnwardFrom, lambda it: f"Resumed from step {it.step}."),
    "alarm": _EventKind(Seen, lambda it: f"{it.message or 'An alarm.'}{_seen_at_step(it.step)}"),
    "pruned": _EventKind(
        AtStep, lambda it: f"Pruned by its sweep as unpromising{_at_step(it.step)}."
    ),
    "unevaluated": _EventKind(Reason, lambda it: f"Not evaluated. {it.message} {it.hint}".strip()),
    "precision": _EventKind(
        NewPrecision,
        lambda it: f"Precision set to {it.precision} for its worker's machine.",
        schema_name="PrecisionChanged",
    ),
}


def _event_class(kind: str, known: _EventKind) -> type[Event]:
    fields: dict[str, Any] = {"kind": (Literal[kind], ...), "data": (known.details, ...)}
    return create_model(known.schema_name or kind.capitalize(), __base__=Event, **fields)


if TYPE_CHECKING:
    AnyEvent = Event
else:
    _CLASSES = (_event_class(kind, known) for kind, known in _EVENT_KINDS.items())
    KnownEvent = Annotated[reduce(or_, _CLASSES), Field(discriminator="kind")]
    AnyEvent = Annotated[KnownEvent | Other, Field(union_mode="left_to_right")]
_EVENT_ADAPTER: TypeAdapter[Event] = TypeAdapter(AnyEvent)


def to_event(row: RunEvent) -> Event:
    return _EVENT_ADAPTER.validate_python(row, from_attributes=True)
