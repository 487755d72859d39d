"""Steps at which metrics became NaN or infinite: which metrics, which modules, and the log."""

import re
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sqlmodel import Session, col, select

from studio.db.tables import Metric, RunEvent
from studio.services.runs import artifacts, runs

CONTEXT_LINES = 12
"""Lines of the log shown before and after the line of the step."""

_STEP = re.compile(rb"step (\d+)/")
"""How a line of metrics begins in a run's log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """One line of the log."""

    number: int
    """Counted from 1."""
    text: str
    is_match: bool
    """Whether the step wrote this line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NonFiniteStep:
    """A step at which a metric was not finite."""

    step: int
    values: dict[str, str]
    """The non-finite metrics: `nan`, `inf` or `-inf`, by key."""
    steps: Sequence[int]
    """The first steps of the run with a non-finite metric, in order."""
    alarms: Sequence[RunEvent]
    """The run's alarms that name a module or were raised at this step."""
    lines: Sequence[LogLine]


MAX_STEPS = 100


def inspect_step(db: Session, run_id: int, step: int, log: Path) -> NonFiniteStep:
    """Collect the metrics, alarms and log lines of a step."""
    conditions = (Metric.run_id == run_id, col(Metric.value).is_(None))
    metrics = select(Metric.key, Metric.non_finite).where(*conditions, Metric.step == step)
    steps = select(Metric.step).where(*conditions).distinct().order_by(col(Metric.step))
    alarms = runs.list_alarms(db, run_id)
    return NonFiniteStep(
        step=step,
        values=dict(db.exec(metrics.order_by(col(Metric.key))).all()),
        steps=db.exec(steps.limit(MAX_STEPS)).all(),
        alarms=[alarm for alarm in alarms if alarm.data["module"] or alarm.data["step"] == step],
        lines=_read_excerpt(log, step),
    )


def _read_excerpt(log: Path, step: int) -> list[LogLine]:
    """Return the line that a step wrote and the lines around it; empty if there is none."""
    if not log.exists():
        return []
    with log.open("rb") as file:
        return _extract_excerpt(enumerate(file, 1), step)


def _extract_excerpt(lines: Iterable[tuple[int, bytes]], step: int) -> list[LogLine]:
    before: deque[tuple[int, bytes]] = deque(maxlen=CONTEXT_LINES)
    excerpt: list[LogLine] = []
    after = 0
    for number, line in lines:
        match = _STEP.search(line)
        if not excerpt and match and int(match[1]) == step:
            excerpt = [_log_line(*numbered_line) for numbered_line in before]
            excerpt.append(_log_line(number, line, is_match=True))
        elif excerpt and after < CONTEXT_LINES:
            excerpt.append(_log_line(number, line))
            after += 1
        elif excerpt:
            return excerpt
        before.append((number, line))
    return excerpt


def _log_line(number: int, line: bytes, *, is_match: bool = False) -> LogLine:
    return LogLine(number=number, text=artifacts.clean_line(line.rstrip(b"\n")), is_match=is_match)
