"""The event log of a training process: one JSON object per line, numbered from 1.

The runner writes it and the worker reads it; they share nothing else. A line is complete when it
ends in a newline, so a reader waits for the rest of a partial line. Non-finite numbers are written
as the strings "NaN" and "Infinity", because JSON cannot represent them.
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
    """The position in the file, set by the log."""
    at: datetime = Field(default_factory=_now)


class Started(_Event):
    """The trainer is built, and the first step is next."""

    kind: Literal["started"] = "started"
    total_steps: int
    resolved: dict[str, Any]
    """The actual dtypes, parameter counts, effective batch size and tokens."""


class Resumed(_Event):
    """Another attempt started, from a checkpoint, or from step 0 without one."""

    kind: Literal["resumed"] = "resumed"
    step: int
    attempt: int


class MetricsLogged(_Event):
    """The metrics of one logging step or one evaluation."""

    kind: Literal["progressed"] = "progressed"
    step: int
    epoch: float
    tokens: int
    """Tokens trained on so far, without padding."""
    seconds: float
    """Time since the first step started, including evaluations."""
    metrics: dict[str, float]


SampleStage = Literal["before", "during", "after"]
"""When the model answered, relative to training."""


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
    """The output format of the model's matrix products and the format of quantised weights:
    `float32`, `bfloat16 (nf4)`; empty in events of earlier versions."""


PHASES = ("loading", "tokenising", "timing", "training", "answering", "saving")
"""The phases of a run."""


class PhaseChanged(_Event):
    """The run entered a phase other than training: loading, tokenising, saving."""

    kind: Literal["phase"] = "phase"
    name: str
    share: float | None = None
    """The share of the whole work that is done; None if unknown."""


class AlarmRaised(_Event):
    """A numerical issue or a checkpoint problem. The run may continue; if not, `Failed` follows."""

    kind: Literal["alarmed"] = "alarmed"
    code: str
    message: str
    hint: str = ""
    step: int
    module: str = ""
    """The name of the module where it occurred first."""


Quantity = Literal["weights", "gradients", "updates", "activations"]
"""What magnitudes are measured of; updates are relative to their weights."""


class MagnitudeHistogram(BaseModel):
    """How the magnitudes of sampled numbers are distributed over powers of two."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    zero: float
    """The share that is exactly zero."""
    nonfinite: float
    """The share that is NaN or infinite."""
    lowest: int
    """The power of two of the first entry of `shares`."""
    shares: list[float]
    """The share from each power of two up to the next, ascending."""


class MagnitudesMeasured(_Event):
    """Where the magnitudes of the run's numbers are, from samples of one training step."""

    kind: Literal["magnitudes"] = "magnitudes"
    step: int
    histograms: dict[Quantity, MagnitudeHistogram]


class Checkpointed(_Event):
    """A complete checkpoint is on disk, so the run can resume from here."""

    kind: Literal["checkpointed"] = "checkpointed"
    step: int
    bytes: int
    seconds: float
    """How long saving took."""


class Finished(_Event):
    """Training finished, and everything is saved."""

    kind: Literal["finished"] = "finished"
    metrics: dict[str, float]


class Paused(_Event):
    """The run paused on request; its newest checkpoint is from this step."""

    kind: Literal["paused"] = "paused"
    step: int


class Stopped(_Event):
    """The run stopped on request."""

    kind: Literal["stopped"] = "stopped"
    step: int
    kept: bool = False
    """Whether the model trained so far was evaluated and saved as the result."""
    metrics: dict[str, float] = Field(default_factory=dict)
    """The metrics of the saved model, as in `Finished`."""


class Failed(_Event):
    """The run cannot continue, with the reason."""

    kind: Literal["failed"] = "failed"
    code: str
    """One of `studio.failure_codes`."""
    message: str
    hint: str = ""
    facts: dict[str, int] = Field(default_factory=dict)
    """Figures that the suggested fixes are based on."""


DISK_FULL = Failed(
    code="disk_full",
    message="The disk is full.",
    hint="Delete old runs or models, then try again.",
)
DISK_FULL_EXIT_CODE = errno.ENOSPC
"""The exit code of a training process that has no disk space left even for its last event."""

Event = Annotated[
    Started
    | Resumed
    | MetricsLogged
    | Sampled
    | PhaseChanged
    | AlarmRaised
    | MagnitudesMeasured
    | Checkpointed
    | Paused
    | Finished
    | Stopped
    | Failed,
    Field(discriminator="kind"),
]
_parse = TypeAdapter[Event](Event).validate_json


class EventLog:
    """An append-only file of events with one writer and any number of readers."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._written = 0

    def append(self, event: Event) -> None:
        """Append the numbered event as one line, in one system call."""
        if not self._written:
            self._end_partial_line()
            self._written = len(self.read()[0])
        self._written += 1
        line = event.model_copy(update={"seq": self._written}).model_dump_json() + "\n"
        with self.path.open("ab", buffering=0) as file:
            file.write(line.encode())

    def read(self, offset: int = 0) -> tuple[list[Event], int]:
        """Return the complete events after byte `offset`, and the next offset to read from.

        Lines that are not events, such as those cut off by a crash, are skipped.
        """
        if not self.path.exists():
            return [], offset
        with self.path.open("rb") as file:
            file.seek(offset)
            complete, newline, _partial = file.read().rpartition(b"\n")
        events = [
            event for line in complete.splitlines() if (event := parse_line(line)) is not None
        ]
        return events, offset + len(complete + newline)

    def read_chunk(self, offset: int, limit: int) -> list[tuple[int, Event | None]]:
        """Return some complete lines after byte `offset`: where each ends, and its event.

        The event is None for a line that is none. About `limit` bytes are read, and at least one
        line if there is one.
        """
        if not self.path.exists():
            return []
        with self.path.open("rb") as file:
            file.seek(offset)
            content = file.read(limit)
            if not content.endswith(b"\n"):
                content += file.readline()
        complete, newline, _partial = content.rpartition(b"\n")
        lines: list[tuple[int, Event | None]] = []
        for line in (complete + newline).splitlines(keepends=True):
            offset += len(line)
            lines.append((offset, parse_line(line)))
        return lines

    def read_head(self, lines: int) -> list[Event]:
        """Return the events of the first lines without reading the rest of the file."""
        if not self.path.exists():
            return []
        with self.path.open("rb") as file:
            return [
                event for line in islice(file, lines) if (event := parse_line(line)) is not None
            ]

    def find(self, *kinds: str) -> list[Event]:
        """Return the events of some kinds, without parsing the others."""
        if not self.path.exists():
            return []
        marks = [f'"kind":"{kind}"'.encode() for kind in kinds]
        with self.path.open("rb") as file:
            return [
                event
                for line in file
                if any(mark in line for mark in marks)
                and (event := parse_line(line)) is not None
                and event.kind in kinds
            ]

    def _end_partial_line(self) -> None:
        """Terminate a line left by a killed writer, so that the next event starts a new line."""
        with self.path.open("ab+", buffering=0) as file:
            if file.tell() == 0:
                return
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.write(b"\n")


def parse_line(line: bytes) -> Event | None:
    """Return the event of a line; None if it is none, such as a line cut off by a crash."""
    try:
        return _parse(line)
    except ValidationError:
        return None
