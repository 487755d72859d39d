"""Read a run's events as batches for a tracker.

A later attempt repeats the steps after its checkpoint. What the earlier one reported of them is
void: it is left out, or taken back if it was sent.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from studio.protocols.events import (
    AlarmRaised,
    Event,
    EventLog,
    Failed,
    Finished,
    MetricsLogged,
    Paused,
    Resumed,
    Sampled,
    Started,
    Stopped,
    parse_line,
)
from studio.trackers.contract import Batch, Point, TrackerState

CHUNK_BYTES = 64 * 1024
"""How much of the log becomes one batch."""

_RESUMED, _STARTED = b'"kind":"resumed"', b'"kind":"started"'
_EVERYTHING = -1
"""The step after which everything is void if an attempt starts from scratch."""

END_EVENTS = (Finished, Failed, Stopped, Paused)
"""The last event of an attempt is one of them, unless it was killed."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the log between two bytes."""

    start: int
    end: int
    event: Event | None


@dataclass(slots=True)
class Reading:
    """What was read, and the state when it has been written."""

    state: TrackerState
    batch: Batch
    rewind: int | None = None
    """The step after which everything is void that was sent."""
    has_ended: bool = False
    """Whether the attempt has reported its end."""
    finished_at: datetime | None = None
    """When the run has succeeded."""


@dataclass(slots=True)
class _Collected:
    points: list[Point] = field(default_factory=list)
    samples: list[Sampled] = field(default_factory=list)
    alarms: list[AlarmRaised] = field(default_factory=list)
    resolved: dict[str, Any] | None = None
    final: dict[str, float] | None = None

    @property
    def has_any(self) -> bool:
        return bool(self.points or self.samples or self.alarms)

    @property
    def batch(self) -> Batch:
        return Batch(
            points=tuple(self.points),
            samples=tuple(self.samples),
            alarms=tuple(self.alarms),
            resolved=self.resolved,
            final=self.final,
        )


def read_next(log: EventLog, state: TrackerState, *, is_over: bool) -> Reading | None:
    """Return the events after the state's offset, or None if there are none.

    They end between two steps: unless the run is over, its newest step is held back until a later
    one, or the end of the attempt, shows that it is complete.
    """
    state = state.model_copy(deep=True)
    if _is_cut(log, state):
        state.rewind_to_start()
        state.voids = []
        return Reading(state, Batch(), rewind=_EVERYTHING)
    lines = _read_whole_steps(log, state.offset, is_over=is_over)
    attempts = list(_find_attempts(log)) if state.offset == 0 else lines
    state.voids = sorted({*state.voids, *_find_voids(attempts, state)})
    return _collect(lines, state) if lines else None


def _is_cut(log: EventLog, state: TrackerState) -> bool:
    """Whether the log no longer holds what was read: its folder was deleted in between."""
    size = log.path.stat().st_size if log.path.exists() else 0
    return size < state.offset


def _read_whole_steps(log: EventLog, offset: int, *, is_over: bool) -> list[Line]:
    """Return lines that end between two steps, at least one if there is one to return."""
    limit = CHUNK_BYTES
    while True:
        lines, start = [], offset
        for end, event in log.read_chunk(offset, limit):
            lines.append(Line(start, end, event))
            start = end
        is_all = start - offset < limit
        if is_all and is_over:
            return lines
        whole = _without_newest_step(lines)
        if whole or is_all:
            return whole
        limit *= 2


def _without_newest_step(lines: list[Line]) -> list[Line]:
    """Leave out the events of the newest step of an attempt that has not ended."""
    newest, place = None, len(lines)
    for index in reversed(range(len(lines))):
        event = lines[index].event
        if isinstance(event, (Resumed, Started, *END_EVENTS)):
            break
        if isinstance(event, MetricsLogged | Sampled | AlarmRaised):
            if newest not in {None, event.step}:
                break
            newest, place = event.step, index
    return lines[:place]


def _find_attempts(log: EventLog) -> Iterator[Line]:
    """Yield the lines of the whole log that begin an attempt, without parsing the others."""
    if not log.path.exists():
        return
    start = 0
    with log.path.open("rb") as file:
        for line in file:
            end = start + len(line)
            if _RESUMED in line or _STARTED in line:
                yield Line(start, end, parse_line(line))
            start = end


def _find_voids(lines: Iterable[Line], state: TrackerState) -> Iterator[tuple[int, int]]:
    """Yield where later attempts begin, and the step after which all before that is void."""
    has_started, has_resumed = state.has_started, state.has_resumed
    for line in lines:
        if isinstance(line.event, Resumed):
            yield line.start, line.event.step
            has_resumed = True
        elif isinstance(line.event, Started):
            if has_started and not has_resumed:
                yield line.start, _EVERYTHING
            has_started, has_resumed = True, False


def _collect(lines: list[Line], state: TrackerState) -> Reading:
    collected, reading = _Collected(), Reading(state, Batch())
    for line in lines:
        if (void := _void_step(line, state)) is not None:
            if not collected.has_any:  # What precedes it is written first.
                state.voids = sorted({*state.voids, (line.start, void)})
                reading.rewind = state.step = void
            break
        if line.event is not None:
            _add(line.event, collected, reading)
        state.offset = line.end
    reading.batch = collected.batch
    return reading


def _void_step(line: Line, state: TrackerState) -> int | None:
    """Return the step after which everything sent is void from this line on, if there is one."""
    steps = [step for byte, step in state.voids if byte == line.start]
    if isinstance(line.event, MetricsLogged) and not _is_void(line.event, state):
        # No attempt goes back unless it says so; if one does, its steps count.
        steps = [line.event.step - 1] if line.event.step < state.step else []
    return steps[0] if steps and state.step > steps[0] else None


def _is_void(event: MetricsLogged | Sampled, state: TrackerState) -> bool:
    """Whether a later attempt repeats the event that begins at the state's offset."""
    return any(state.offset < byte and event.step > step for byte, step in state.voids)


def _add(event: Event, collected: _Collected, reading: Reading) -> None:
    state = reading.state
    match event:
        case Resumed():
            state.has_resumed = True
        case Started():
            state.has_started, state.has_resumed = True, False
            collected.resolved = event.resolved
        case MetricsLogged() if not _is_void(event, state):
            collected.points.append(_point(event))
            state.step = max(state.step, event.step)
        case Sampled() if not _is_void(event, state):
            collected.samples.append(event)
            state.step = max(state.step, event.step)
        case AlarmRaised():
            collected.alarms.append(event)
        case Finished() | Stopped() if event.metrics:
            collected.final = event.metrics
    reading.has_ended = isinstance(event, END_EVENTS)
    reading.finished_at = event.at if isinstance(event, Finished) else None


def _point(event: MetricsLogged) -> Point:
    return Point(
        step=event.step,
        at=event.at,
        epoch=event.epoch,
        tokens=event.tokens,
        seconds=event.seconds,
        values=event.metrics,
    )
