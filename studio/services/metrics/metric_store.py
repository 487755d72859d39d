"""Store the metrics that runs log."""

from collections.abc import Iterable, Sequence
from typing import Any

from sqlmodel import Session, col, insert, select, update

from studio.db.tables import Metric, Run
from studio.protocols.events import MetricsLogged
from studio.services.metrics import metric_summaries

RowsOfRun = tuple[Run, list[dict[str, Any]]]
"""A run, and rows of `Metric` that it logged, oldest first."""


def store(db: Session, batches: Sequence[RowsOfRun]) -> None:
    """Store metric rows of runs, one for each key and step.

    Rows of a later attempt replace those of an earlier one.
    """
    new: list[dict[str, Any]] = []
    old: list[dict[str, Any]] = []
    for run, rows in batches:
        ids_by_key = _stored_ids(db, run, rows)
        for row in rows:
            row_id = ids_by_key.get((row["key"], row["step"]))
            if row_id is None:
                new.append(row)
            else:
                old.append({"id": row_id} | row)
    if new:
        db.exec(insert(Metric), params=new)
    if old:
        db.exec(update(Metric), params=old)
    metric_summaries.add(db, [row for _run, rows in batches for row in rows])


def _stored_ids(db: Session, run: Run, rows: list[dict[str, Any]]) -> dict[tuple[str, int], int]:
    """Return which rows an earlier attempt has stored, by key and step."""
    if run.attempt <= 1 or not rows:
        return {}
    query = select(Metric).where(Metric.run_id == run.id)
    query = query.where(col(Metric.step) >= min(row["step"] for row in rows))
    return {(row.key, row.step): row.id or 0 for row in db.exec(query)}


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
