"""What a training process tells the world: one JSON object a line, in order, numbered from one.

The runner writes, the worker reads, and neither knows the other. A line is complete once it ends
in a newline, so a reader that meets half a line waits for the rest. Non-finite numbers travel as
the strings "NaN" and "Infinity": JSON has no word for them, and they must not turn into zero.
"""

import errno
import os
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError


def _now() -> datetime:
    return datetime.now(UTC)


class _Event(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")
    seq: int = 0
    """Its place in the file; the log sets it."""
    at: datetime = Field(default_factory=_now)


class Started(_Event):
    """The trainer is built; the first step is next."""

    kind: Literal["started"] = "started"
    total_steps: int
    resolved: dict[str, Any]
    """What really runs: dtypes, parameter counts, effective batch, tokens."""


class Resumed(_Event):
    """Another attempt has begun, from a checkpoint, or from step 0 where there was none."""

    kind: Literal["resumed"] = "resumed"
    step: int
    attempt: int


class MetricsLogged(_Event):
    """One logging step, or one evaluation: numbers at a place on every axis."""

    kind: Literal["progressed"] = "progressed"
    step: int
    epoch: float
    tokens: int
    """Real tokens trained on so far; padding is not counted."""
    seconds: float
    """Since the first step began, evaluations included."""
    metrics: dict[str, float]


SampleStage = Literal["before", "during", "after"]
"""When the model answered, seen from its training."""


class Sampled(_Event):
    """The model's answer to one fixed validation prompt."""

    kind: Literal["sampled"] = "sampled"
    stage: SampleStage
    step: int
    position: int
    prompt: str
    reference: str
    answer: str
    computed_in: str = ""
    """The format that came out of the model's products, and that of quantised weights: `float32`,
    `bfloat16 (nf4)`; empty in events of earlier versions."""


PHASES = ("loading", "tokenising", "training", "answering", "saving")
"""What a run goes through."""


class PhaseChanged(_Event):
    """A stage that is not training: loading, tokenising, saving."""

    kind: Literal["phase"] = "phase"
    name: str
    share: float | None = None
    """How much of all the work is done; None where nobody counts."""


class AlarmRaised(_Event):
    """The run's numbers break, or its checkpoints. It may go on; if not, `Failed` says so."""

    kind: Literal["alarmed"] = "alarmed"
    code: str
    message: str
    hint: str = ""
    step: int
    module: str = ""
    """Where in the model it was seen first, by name."""


class Checkpointed(_Event):
    """The run could go on from here: a checkpoint is whole and on the disk."""

    kind: Literal["checkpointed"] = "checkpointed"
    step: int
    bytes: int
    seconds: float
    """What it took."""


class Finished(_Event):
    """All was trained and saved."""

    kind: Literal["finished"] = "finished"
    metrics: dict[str, float]


class Paused(_Event):
    """The run was asked to pause, and did; its newest checkpoint is of this step."""

    kind: Literal["paused"] = "paused"
    step: int


class Stopped(_Event):
    """The run was asked to stop, and did."""

    kind: Literal["stopped"] = "stopped"
    step: int
    kept: bool = False
    """Whether what was learnt so far was measured and saved, as a result."""
    metrics: dict[str, float] = Field(default_factory=dict)
    """As those of `Finished`, of what was kept."""


class Failed(_Event):
    """The run cannot go on, in words."""

    kind: Literal["failed"] = "failed"
    code: str
    """One of `studio.failure_codes`."""
    message: str
    hint: str = ""
    facts: dict[str, int] = Field(default_factory=dict)
    """Numbers that a repair can go by."""


DISK_FULL = Failed(
    code="disk_full",
    message="The disk is full.",
    hint="Delete old runs or models, then try again.",
)
DISK_FULL_EXIT_CODE = errno.ENOSPC
"""The exit code of a training process that has no room left even for its last event."""

Event = Annotated[
    Started
    | Resumed
    | MetricsLogged
    | Sampled
    | PhaseChanged
    | AlarmRaised
    | Checkpointed
    | Paused
    | Finished
    | Stopped
    | Failed,
    Field(discriminator="kind"),
]
_parse = TypeAdapter[Event](Event).validate_json


class EventLog:
    """An append-only file of events. One process writes it, any number read it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._written = 0

    def append(self, event: Event) -> None:
        """Write the event, numbered, as one whole line in one system call."""
        if not self._written:
            self._end_partial_line()
            self._written = self._count()
        self._written += 1
        line = event.model_copy(update={"seq": self._written}).model_dump_json() + "\n"
        with self.path.open("ab", buffering=0) as file:
            file.write(line.encode())

    def read(self, offset: int = 0) -> tuple[list[Event], int]:
        """Return the whole events after byte `offset`, and the offset to read from next.

        A line that is no event, as a crash in mid-write leaves it, is passed over.
        """
        if not self.path.exists():
            return [], offset
        with self.path.open("rb") as file:
            file.seek(offset)
            whole, newline, _half = file.read().rpartition(b"\n")
        events = [event for line in whole.splitlines() if (event := _parse_line(line)) is not None]
        return events, offset + len(whole + newline)

    def read_head(self, lines: int) -> list[Event]:
        """Return the events of the first lines, however long the file has grown."""
        if not self.path.exists():
            return []
        with self.path.open("rb") as file:
            return [
                event for line in islice(file, lines) if (event := _parse_line(line)) is not None
            ]

    def _end_partial_line(self) -> None:
        """End the line that an earlier writer was killed in, or the next would be part of it."""
        with self.path.open("ab+", buffering=0) as file:
            if file.tell() == 0:
                return
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.write(b"\n")

    def _count(self) -> int:
        return len(self.read()[0])


def _parse_line(line: bytes) -> Event | None:
    try:
        return _parse(line)
    except ValidationError:
        return None
