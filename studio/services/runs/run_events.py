"""What befell a run, as its audit log: every kind of it, what it tells, and in which words."""

from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, computed_field

from studio.db.tables import RunEvent
from studio.schemas.field_docs import FieldDocs


class _Told(FieldDocs, BaseModel):
    """Facts of a happening. Older studios told fewer of them, so each may be missing."""

    model_config = ConfigDict(ser_json_inf_nan="strings")


class Nothing(_Told):
    """There is nothing to add."""


class Cause(_Told):
    because: str = ""
    """Why it went back to the queue by itself; empty when a person put it there."""
    attempt: int | None = None


class OfAttempt(_Told):
    attempt: int | None = None


class Asked(_Told):
    asked: str = ""
    """`cancel`, `keep`, `pause` or `drain`."""


class AtStep(_Told):
    step: int | None = None


class Result(_Told):
    stopped_at: int | None = None
    """The step at which a person stopped it, keeping what it had learnt."""


class Reason(_Told):
    code: str = ""
    message: str = ""
    hint: str = ""


class Priority(_Told):
    priority: int | None = None


class Place(_Told):
    place: int | None = None
    """Counted from one, among those of its priority that wait."""


class OnwardFrom(_Told):
    step: int | None = None
    attempt: int | None = None


class NewPrecision(_Told):
    precision: str = ""


class Seen(Reason):
    step: int | None = None
    module: str = ""


class _Happened(BaseModel):
    model_config = ConfigDict(from_attributes=True)

    id: int
    at: datetime
    kind: str
    data: Any

    @computed_field  # type: ignore[prop-decorator] # as pydantic documents it
    @property
    def words(self) -> str:
        """What happened, as a sentence."""
        in_words = _WORDS.get(self.kind)
        return in_words(self.data) if in_words else f"{self.kind.replace('_', ' ').capitalize()}."


class Queued(_Happened):
    kind: Literal["queued"]
    data: Cause


class Starting(_Happened):
    kind: Literal["starting"]
    data: OfAttempt


class Running(_Happened):
    kind: Literal["running"]
    data: Nothing


class Stopping(_Happened):
    kind: Literal["stopping"]
    data: Asked


class Paused(_Happened):
    kind: Literal["paused"]
    data: AtStep


class Succeeded(_Happened):
    kind: Literal["succeeded"]
    data: Result


class Failed(_Happened):
    kind: Literal["failed"]
    data: Reason


class Cancelled(_Happened):
    kind: Literal["cancelled"]
    data: AtStep


class Held(_Happened):
    kind: Literal["held"]
    data: Nothing


class Released(_Happened):
    kind: Literal["released"]
    data: Nothing


class Prioritised(_Happened):
    kind: Literal["prioritised"]
    data: Priority


class Moved(_Happened):
    kind: Literal["moved"]
    data: Place


class Checkpointed(_Happened):
    kind: Literal["checkpointed"]
    data: AtStep


class Restarted(_Happened):
    kind: Literal["restarted"]
    data: Nothing


class Resumed(_Happened):
    kind: Literal["resumed"]
    data: OnwardFrom


class Alarm(_Happened):
    kind: Literal["alarm"]
    data: Seen


class Pruned(_Happened):
    kind: Literal["pruned"]
    data: AtStep


class PrecisionChanged(_Happened):
    kind: Literal["precision"]
    data: NewPrecision


class Other(_Happened):
    """A kind that this version does not know; a program passes over it."""

    data: dict[str, Any]


Known = Annotated[
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
Happened = Annotated[Known | Other, Field(union_mode="left_to_right")]
_HAPPENED: TypeAdapter[Known | Other] = TypeAdapter(Happened)


def told(row: RunEvent) -> Known | Other:
    return _HAPPENED.validate_python(row, from_attributes=True)


_ASKED = {
    "cancel": "Asked to stop.",
    "keep": "Asked to stop and to keep what it has learnt.",
    "pause": "Asked to pause.",
    "drain": "Asked to pause, because its worker is leaving.",
}

_WORDS: dict[str, Callable[[Any], str]] = {
    "queued": lambda it: (
        f"Back in the queue. {it.because}" if it.because else "Put into the queue."
    ),
    "starting": lambda it: f"Taken by a worker, attempt {it.attempt or 1}.",
    "running": lambda _: "Began to train.",
    "stopping": lambda it: _ASKED.get(it.asked, "Asked to stop."),
    "paused": lambda it: f"Paused{_at(it.step)}.",
    "succeeded": lambda it: f"Stopped and kept{_at(it.stopped_at)}." if it.stopped_at else "Done.",
    "failed": lambda it: it.message or "Failed.",
    "cancelled": lambda it: f"Cancelled{_at(it.step)}.",
    "held": lambda _: "Held: it waits until it is released.",
    "released": lambda _: "Released.",
    "prioritised": lambda it: f"Given priority {it.priority}.",
    "moved": lambda it: f"Moved to place {it.place} of those that wait.",
    "checkpointed": lambda it: f"Wrote a checkpoint{_at(it.step)}.",
    "restarted": lambda _: "Begun anew: the numbers and answers of before are gone.",
    "pruned": lambda it: f"Its sweep saw no hope for it{_at(it.step)}.",
    "resumed": lambda it: f"Went on from step {it.step}.",
    "precision": lambda it: f"Precision set to {it.precision} for the machine of its worker.",
    "alarm": lambda it: f"{it.message or 'An alarm.'}{_seen(it.step)}",
}


def _at(step: int | None) -> str:
    return "" if step is None else f" at step {step}"


def _seen(step: int | None) -> str:
    return "" if step is None else f" Seen at step {step}."
