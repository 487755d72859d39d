"""Store the metrics that runs log."""

from collections.abc import Iterable
from typing import Any

from sqlmodel import Session, col, insert, select, update

from studio.db.tables import Metric, Run
from studio.protocols.events import MetricsLogged
from studio.services.metrics import metric_summaries


def store(db: Session, run: Run, numbers: list[dict[str, Any]]) -> None:
    """Store metric rows, one for each key and step: a later attempt replaces earlier values."""
    known: dict[tuple[str, int], int] = {}
    if run.attempt > 1 and numbers:
        told = select(Metric).where(Metric.run_id == run.id)
        told = told.where(col(Metric.step) >= min(one["step"] for one in numbers))
        known = {(row.key, row.step): row.id or 0 for row in db.exec(told)}
    new = [one for one in numbers if (one["key"], one["step"]) not in known]
    old = [
        {"id": known[one["key"], one["step"]]} | one
        for one in numbers
        if (one["key"], one["step"]) in known
    ]
    if new:
        db.exec(insert(Metric), params=new)
    if old:
        db.exec(update(Metric), params=old)
    metric_summaries.add(db, run.id or 0, numbers)


def build_rows(run: Run, event: MetricsLogged) -> Iterable[dict[str, Any]]:
    place = {
        "run_id": run.id,
        "step": event.step,
        "epoch": event.epoch,
        "tokens": event.tokens,
        "seconds": event.seconds,
    }
    for key, value in event.metrics.items():
        yield place | {"key": key} | split_non_finite(value)


def split_non_finite(value: float) -> dict[str, Any]:
    """Split a number into its finite value and the name of a non-finite one."""
    finite = abs(value) < float("inf")  # false for NaN, too
    return {"value": value if finite else None, "non_finite": "" if finite else str(value)}
