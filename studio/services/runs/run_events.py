"""The history of a run: every kind of event, its details and its sentence."""

from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, computed_field

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


class Asked(_EventDetails):
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


class _EventBase(BaseModel):
    model_config = ConfigDict(from_attributes=True)

    id: int
    at: datetime
    kind: str
    data: Any

    @computed_field  # type: ignore[prop-decorator] # as pydantic documents it
    @property
    def words(self) -> str:
        """What happened, in one sentence."""
        in_words = _EVENT_SENTENCES.get(self.kind)
        return in_words(self.data) if in_words else f"{self.kind.replace('_', ' ').capitalize()}."


class Queued(_EventBase):
    kind: Literal["queued"]
    data: Cause


class Starting(_EventBase):
    kind: Literal["starting"]
    data: OfAttempt


class Running(_EventBase):
    kind: Literal["running"]
    data: Nothing


class Stopping(_EventBase):
    kind: Literal["stopping"]
    data: Asked


class Paused(_EventBase):
    kind: Literal["paused"]
    data: AtStep


class Succeeded(_EventBase):
    kind: Literal["succeeded"]
    data: Result


class Failed(_EventBase):
    kind: Literal["failed"]
    data: Reason


class Cancelled(_EventBase):
    kind: Literal["cancelled"]
    data: AtStep


class Held(_EventBase):
    kind: Literal["held"]
    data: Nothing


class Released(_EventBase):
    kind: Literal["released"]
    data: Nothing


class Prioritised(_EventBase):
    kind: Literal["prioritised"]
    data: Priority


class Moved(_EventBase):
    kind: Literal["moved"]
    data: Place


class Checkpointed(_EventBase):
    kind: Literal["checkpointed"]
    data: AtStep


class Restarted(_EventBase):
    kind: Literal["restarted"]
    data: Nothing


class Resumed(_EventBase):
    kind: Literal["resumed"]
    data: OnwardFrom


class Alarm(_EventBase):
    kind: Literal["alarm"]
    data: Seen


class Pruned(_EventBase):
    kind: Literal["pruned"]
    data: AtStep


class PrecisionChanged(_EventBase):
    kind: Literal["precision"]
    data: NewPrecision


class Other(_EventBase):
    """A kind that this version does not know; programs should ignore it."""

    data: dict[str, Any]


KnownEvent = Annotated[
    Queued
    | Starting
    | Running
    | Stopping
    | Paused
    | Succeeded
    | Failed
    | Cancelled
    | Held
    | Released
    | Prioritised
    | Moved
    | Checkpointed
    | Restarted
    | Resumed
    | Alarm
    | Pruned
    | PrecisionChanged,
    Field(discriminator="kind"),
]
AnyEvent = Annotated[KnownEvent | Other, Field(union_mode="left_to_right")]
_EVENT_ADAPTER: TypeAdapter[KnownEvent | Other] = TypeAdapter(AnyEvent)


def to_event(row: RunEvent) -> KnownEvent | Other:
    return _EVENT_ADAPTER.validate_python(row, from_attributes=True)


_REQUEST_SENTENCES = {
    "cancel": "Asked to stop.",
    "keep": "Asked to stop and keep the model trained so far.",
    "pause": "Asked to pause.",
    "drain": "Asked to pause because its worker is shutting down.",
}

_EVENT_SENTENCES: dict[str, Callable[[Any], str]] = {
    "queued": lambda it: (
        f"Back in the queue. {it.because}" if it.because else "Added to the queue."
    ),
    "starting": lambda it: f"Claimed by a worker, attempt {it.attempt or 1}.",
    "running": lambda _: "Started training.",
    "stopping": lambda it: _REQUEST_SENTENCES.get(it.asked, "Asked to stop."),
    "paused": lambda it: f"Paused{_at_step(it.step)}.",
    "succeeded": lambda it: (
        f"Stopped and kept the model{_at_step(it.stopped_at)}." if it.stopped_at else "Done."
    ),
    "failed": lambda it: it.message or "Failed.",
    "cancelled": lambda it: f"Cancelled{_at_step(it.step)}.",
    "held": lambda _: "Held until it is released.",
    "released": lambda _: "Released.",
    "prioritised": lambda it: f"Priority set to {it.priority}.",
    "moved": lambda it: f"Moved to position {it.place} within its priority.",
    "checkpointed": lambda it: f"Wrote a checkpoint{_at_step(it.step)}.",
    "restarted": lambda _: "Restarted: earlier metrics and answers were deleted.",
    "pruned": lambda it: f"Pruned by its sweep as unpromising{_at_step(it.step)}.",
    "resumed": lambda it: f"Resumed from step {it.step}.",
    "precision": lambda it: f"Precision set to {it.precision} for its worker's machine.",
    "alarm": lambda it: f"{it.message or 'An alarm.'}{_seen_at_step(it.step)}",
}


def _at_step(step: int | None) -> str:
    return "" if step is None else f" at step {step}"


def _seen_at_step(step: int | None) -> str:
    return "" if step is None else f" Seen at step {step}."
