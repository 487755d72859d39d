"""Runs side by side, as JSON."""

from typing import Annotated, Any

from fastapi import APIRouter, Query

from studio.services import compare, metrics
from studio.web.api.runs import SeriesOut
from studio.web.api.shapes import Out
from studio.web.deps import DB, RunIds

router = APIRouter(prefix="/api/v1/compare", tags=["compare"])


class CellOut(Out):
    value: float | None
    delta: float | None
    verdict: str


class ComparisonOut(Out):
    runs: list[int]
    base: int
    differing: dict[str, list[Any]]
    """Recipe keys whose values are not all alike, with the value in each run."""
    metrics: dict[str, list[CellOut]]
    x: list[float]
    curves: dict[str, dict[int, SeriesOut]]
    """By metric, then by run, along the shared x axis."""


@router.get("")
def show(
    db: DB,
    runs: RunIds,
    base: int | None = None,
    keys: Annotated[str, Query(max_length=1000)] = "loss,eval_loss",
    x: metrics.Axis = "step",
) -> ComparisonOut:
    made = compare.compare(db, runs, base)
    ids = [run.id or 0 for run in made.runs]
    found = metrics.curves(db, ids, keys.split(","), x=x)
    curves: dict[str, dict[int, SeriesOut]] = {}
    for (run_id, key), one in found.series.items():
        curves.setdefault(key, {})[run_id] = SeriesOut.model_validate(one, from_attributes=True)
    return ComparisonOut.model_validate(
        {
            "runs": ids,
            "base": made.base.id,
            "differing": {key: made.settings[key] for key in made.differing},
            "metrics": made.metrics,
            "x": found.x,
            "curves": curves,
        }
    )
