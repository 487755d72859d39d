"""Numerical issues of a study's runs by step: alerts, skipped steps, and NaN or infinite losses."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from sqlmodel import Session, col, select

from studio.db.tables import Metric, Run, RunEvent
from studio.services.runs import runs

IncidentKind = Literal["alarm", "skipped", "broken"]

_MAX_SPELLS = 100
"""Most intervals of one kind in a run; closer steps are joined."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """An incident at a step, or the same kind over an interval of steps."""

    precision: str
    seed: int
    run_id: int
    kind: IncidentKind
    first: int
    last: int
    count: int = 1
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    steps: int
    """Steps of the longest run, as far as known."""
    incidents: list[Incident]
    """Sorted by step."""


def build_timeline(db: Session, study_runs: Sequence[Run]) -> Timeline:
    """Collect the numerical issues of runs, by step."""
    by_id = {run.id or 0: run for run in study_runs}
    steps = max((run.total_steps or run.step for run in study_runs), default=0)
    incidents = [
        *_load_alarms(db, by_id),
        *_find_skipped_steps(db, by_id),
        *_find_broken_steps(db, by_id),
    ]
    gap = max(1, steps // _MAX_SPELLS)
    return Timeline(steps=steps, incidents=sorted(_join_spells(incidents, gap), key=_sort_key))


def _load_alarms(db: Session, by_id: dict[int, Run]) -> Iterator[Incident]:
    query = select(RunEvent).where(col(RunEvent.run_id).in_(by_id), *runs.alarm_conditions())
    for event in db.exec(query.order_by(col(RunEvent.id))):
        yield _incident_at(
            by_id[event.run_id], "alarm", event.data["step"], text=event.data["message"]
        )


def _find_skipped_steps(db: Session, by_id: dict[int, Run]) -> Iterator[Incident]:
    """Yield the steps where the count of skipped steps increased, and by how much."""
    before: dict[int, float] = {}
    for metric in _load_metrics(db, by_id, "skipped_steps"):
        now = metric.value or 0
        risen = round(now - before.get(metric.run_id, 0))
        before[metric.run_id] = now
        if risen > 0:
            yield _incident_at(by_id[metric.run_id], "skipped", metric.step, count=risen)


def _find_broken_steps(db: Session, by_id: dict[int, Run]) -> Iterator[Incident]:
    for metric in _load_metrics(db, by_id, "loss", broken=True):
        yield _incident_at(by_id[metric.run_id], "broken", metric.step)


def _load_metrics(
    db: Session, by_id: dict[int, Run], key: str, *, broken: bool = False
) -> Sequence[Metric]:
    query = select(Metric).where(col(Metric.run_id).in_(by_id), Metric.key == key)
    if broken:
        query = query.where(Metric.non_finite != "")
    return db.exec(query.order_by(col(Metric.run_id), col(Metric.step))).all()


def _incident_at(
    run: Run, kind: IncidentKind, step: int, *, count: int = 1, text: str = ""
) -> Incident:
    return Incident(
        precision=run.recipe.precision,
        seed=run.recipe.optimisation.seed,
        run_id=run.id or 0,
        kind=kind,
        first=step,
        last=step,
        count=count,
        text=text,
    )


def _join_spells(incidents: Iterable[Incident], gap: int) -> list[Incident]:
    """Join incidents of one kind within a gap, except alerts, which differ in their text."""
    joined: list[Incident] = []
    for incident in incidents:
        before = joined[-1] if joined else None
        if before and incident.kind != "alarm" and _continues(before, incident, gap):
            joined[-1] = replace(before, last=incident.last, count=before.count + incident.count)
        else:
            joined.append(incident)
    return joined


def _continues(before: Incident, incident: Incident, gap: int) -> bool:
    same = (before.kind, before.run_id) == (incident.kind, incident.run_id)
    return same and incident.first - before.last <= gap


def _sort_key(incident: Incident) -> tuple[int, int]:
    return incident.first, incident.run_id
