"""What a tracker is given, what it keeps, and what it must be able to do.

A tracker writes batches of a run's events. After each batch its state is stored, so that a process
that was killed anywhere continues there. What the killed process wrote after the last stored state
is written again: a tracker must make sure that each step is there once.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from studio import files
from studio.protocols.events import AlarmRaised, EventLog, Sampled
from studio.settings import TrackerName

EndStatus = Literal["succeeded", "failed", "cancelled"]


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")


class TrackerOptions(_Message):
    """Where in a tracker a run belongs; by default its experiment names the project."""

    project: str = ""
    name: str = ""
    """The run's name there; by default its name here."""
    entity: str = ""
    """The team, at Weights & Biases."""
    tags: tuple[str, ...] = ()


class RunEnd(_Message):
    """How a run has ended."""

    status: EndStatus
    at: datetime
    error: str = ""
    """Why it failed."""


class RunFacts(_Message):
    """What trackers get of a run besides its events."""

    run: int
    key: str
    """Names the run among those of all studios."""
    name: str
    experiment: str
    tags: tuple[str, ...] = ()
    """Its tags in the studio; its method, precision and seed are added."""
    notes: str = ""
    url: str = ""
    """Its page in the studio; empty if the studio's public address is not set."""
    recipe: dict[str, Any]
    created_at: datetime
    end: RunEnd | None = None
    """None while it may continue."""


class TrackerJob(_Message):
    """A tracker to send a run to."""

    tracker: TrackerName
    options: TrackerOptions = TrackerOptions()
    failures: int = 0
    """How often in a row sending has failed so far."""


class TrackingJob(_Message):
    """A run to send, and the trackers to send it to."""

    folder: Path
    """The run's folder."""
    facts: RunFacts
    trackers: dict[str, TrackerJob]
    """By key: the tracker's name, with a number if a run is sent to one several times."""
    about: str = ""
    """What is sent, for display."""
    answer_seconds: float = 60.0
    """How long a tracker may take for one batch."""
    idle_seconds: float = 60.0
    """How long to wait for news of a run."""


class TrackerOutcome(_Message):
    """How far a process has come with one tracker."""

    offset: int
    is_closed: bool
    failures: int
    error: str
    hint: str
    retry_at: datetime | None = None
    """When to try again, if it has failed."""


class TrackingResult(_Message):
    trackers: dict[str, TrackerOutcome]


RETRY_SECONDS = (30, 60, 300, 1800, 7200, 18000, 28800, 28800)
"""How long to wait after each failure in a row: nine attempts over a day."""


class TrackerState(BaseModel):
    """What has been sent to one tracker; stored after each batch."""

    model_config = ConfigDict(ser_json_inf_nan="strings")

    offset: int = 0
    """The byte of the event log after which the next batch begins."""
    step: int = -1
    """The last step that was sent."""
    voids: list[tuple[int, int]] = Field(default_factory=list)
    """Where each later attempt begins: before this byte, events after this step are void."""
    has_started: bool = False
    has_resumed: bool = False
    """Whether an attempt has resumed from a checkpoint, but has not started training yet."""
    generation: int = 1
    """Counts up whenever the run has to be sent again as a new one."""
    is_open: bool = False
    """Whether a process writes. If there is none, it was killed."""
    is_closed: bool = False
    """Whether the tracker knows how the run ended."""
    own: dict[str, Any] = Field(default_factory=dict)
    """What the tracker needs to continue: the name of a file, the id of a run."""
    place: str = ""
    """Where to see it: a folder or an address."""
    command: str = ""
    """The command that shows it; empty if `place` is an address."""
    failures: int = 0
    """How often in a row sending has failed."""
    error: str = ""
    """Why sending failed the last time."""
    hint: str = ""

    @classmethod
    def read(cls, folder: Path, key: str) -> "TrackerState":
        """Return the stored state; a new one if there is none that can be read."""
        try:
            return cls.model_validate_json(_file(folder, key).read_bytes())
        except (OSError, ValidationError):
            return cls()

    def save(self, folder: Path, key: str) -> None:
        folder.mkdir(exist_ok=True)
        files.replace_text(_file(folder, key), self.model_dump_json(indent=2))

    def rewind_to_start(self) -> None:
        """Begin with the first event again."""
        self.offset, self.step = 0, -1
        self.has_started = self.has_resumed = False

    def start_again(self) -> None:
        """Forget what was sent: the run is sent from its beginning, as a new one."""
        self.rewind_to_start()
        self.generation, self.is_open, self.is_closed = self.generation + 1, False, False


def _file(folder: Path, key: str) -> Path:
    return folder / f"{key}.json"


Request = Literal["retry", "stop"]
"""What users ask of a process that sends a run."""


def ask(folder: Path, key: str, request: Request) -> None:
    """Ask the process that sends a run to a tracker, if there is one."""
    if folder.is_dir():
        files.replace_text(_request_file(folder, key), request)


def take_request(folder: Path, key: str) -> str:
    """Return what was asked since the last call; empty if nothing was."""
    path = _request_file(folder, key)
    if not path.exists():
        return ""
    request = path.read_text(encoding="utf-8")
    path.unlink()
    return request


def forget(folder: Path, key: str) -> None:
    """Forget what has been sent."""
    _file(folder, key).unlink(missing_ok=True)


def _request_file(folder: Path, key: str) -> Path:
    return folder / f"{key}.ask"


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """The metrics of one logging step or one evaluation."""

    step: int
    at: datetime
    epoch: float
    tokens: int
    seconds: float
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Events to write, in their order."""

    points: tuple[Point, ...] = ()
    samples: tuple[Sampled, ...] = ()
    alarms: tuple[AlarmRaised, ...] = ()
    resolved: Mapping[str, Any] | None = None
    """The actual dtypes, counts and versions, if an attempt has started."""
    final: Mapping[str, float] | None = None
    """The metrics of the model that was saved, if the run has ended with one."""

    def __bool__(self) -> bool:
        reported = (self.resolved, self.final)
        has_reported = any(one is not None for one in reported)
        return bool(self.points or self.samples or self.alarms or has_reported)

    @property
    def last_step(self) -> int:
        """The last step of its metrics and answers; -1 if there are none."""
        points, samples = (one.step for one in self.points), (one.step for one in self.samples)
        return max((*points, *samples), default=-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where a run is to be written."""

    facts: RunFacts
    options: TrackerOptions
    folder: Path
    """The tracker's own folder, for what it keeps on this machine."""
    log: EventLog
    url: str = ""
    """The address of its server, if it has one."""
    secret: str = ""

    @property
    def project(self) -> str:
        return self.options.project or self.facts.experiment

    @property
    def name(self) -> str:
        return self.options.name or f"{self.facts.name} (run {self.facts.run})"

    @property
    def facets(self) -> dict[str, str]:
        """What most often distinguishes runs."""
        recipe = self.facts.recipe
        values = {
            "method": recipe.get("method", ""),
            "precision": recipe.get("precision", ""),
            "seed": recipe.get("optimisation", {}).get("seed", ""),
        }
        return {name: str(value) for name, value in values.items() if value != ""}

    @property
    def tags(self) -> tuple[str, ...]:
        """The run's tags in the studio, those asked for, and its facets."""
        facets = (f"{name}:{value}" for name, value in self.facets.items())
        return tuple(dict.fromkeys((*facets, *self.facts.tags, *self.options.tags)))


class TrackerWriter(Protocol):
    """Writes one run to one tracker. What it needs to continue, it keeps in `TrackerState.own`."""

    def write(self, batch: Batch) -> None:
        """Write a batch; when it returns, a kill no longer loses it."""

    def rewind(self, step: int) -> bool:
        """Remove what follows a step. Return False if the tracker cannot: it starts again."""

    def close(self, end: RunEnd | None) -> None:
        """Let go of the run. Without an end, it continues later."""
