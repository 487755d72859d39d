"""Store the metrics that runs log."""

from collections.abc import Iterable
from typing import Any

from sqlmodel import Session, col, insert, select, update

from studio.db.tables import Metric, Run
from studio.protocols.events import MetricsLogged
from studio.services.metrics import metric_summaries


def store(db: Session, run: Run, numbers: list[dict[str, Any]]) -> None:
    """Store metric rows, one for each key and step: a later attempt replaces earlier values."""
    ids_by_key: dict[tuple[str, int], int] = {}
    if run.attempt > 1 and numbers:
        query = select(Metric).where(Metric.run_id == run.id)
        query = query.where(col(Metric.step) >= min(metric_row["step"] for metric_row in numbers))
        ids_by_key = {(row.key, row.step): row.id or 0 for row in db.exec(query)}
    new = [
        metric_row
        for metric_row in numbers
        if (metric_row["key"], metric_row["step"]) not in ids_by_key
    ]
    old = [
        {"id": ids_by_key[metric_row["key"], metric_row["step"]]} | metric_row
        for metric_row in numbers
        if (metric_row["key"], metric_row["step"]) in ids_by_key
    ]
    if new:
        db.exec(insert(Metric), params=new)
    if old:
        db.exec(update(Metric), params=old)
    metric_summaries.add(db, run.id or 0, numbers)


def build_rows(run: Run, event: MetricsLogged) -> Iterable[dict[str, Any]]:
    position = {
        "run_id": run.id,
        "step": event.step,
        "epoch": event.epoch,
        "tokens": event.tokens,
        "seconds": event.seconds,
    }
    for key, value in event.metrics.items():
        yield position | {"key": key} | split_non_finite(value)


def split_non_finite(value: float) -> dict[str, Any]:
    """Split a number into its finite value and the name of a non-finite one."""
    finite = abs(value) < float("inf")  # false for NaN, too
    return {"value": value if finite else None, "non_finite": "" if finite else str(value)}
