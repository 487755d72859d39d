"""The tiles of a run: the newest value of each metric that matters, its course and its best."""

from dataclasses import dataclass

from sqlmodel import Session, col, func, select

from studio.db.summaries import MetricSummary
from studio.db.tables import Metric, Run
from studio.methods import METRICS
from studio.metrics import Direction, MetricSpec
from studio.services.metrics import metric_summaries
from studio.web.rendering import live_figures

MIN_POINTS = 2
"""A best value needs others that it is better than."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    name: str
    better: Direction = ""
    """The better direction, if the best value is worth a mark."""
    curve: list[float]
    best: float | None = None
    best_step: int | None = None


def list_tiles(db: Session, run: Run) -> list[Tile]:
    """Return the tiles that a run shows from its start."""
    run_id = run.id or 0
    names = live_figures.tiles(run, "always")
    summaries = metric_summaries.load_by_run(db, [run_id], names).get(run_id, {})
    return [_tile(db, METRICS[name], summaries.get(name)) for name in names]


def _tile(db: Session, spec: MetricSpec, summary: MetricSummary | None) -> Tile:
    better = "" if spec.source == "studio" else spec.better
    curve = summary.curve if summary else []
    if summary is None or not better or summary.count < MIN_POINTS:
        return Tile(name=spec.key, better=better, curve=curve)
    best = summary.least if better == "lower" else summary.greatest
    step = select(func.min(Metric.step)).where(
        col(Metric.run_id) == summary.run_id,
        col(Metric.key) == spec.key,
        col(Metric.value) == best,
    )
    return Tile(name=spec.key, better=better, curve=curve, best=best, best_step=db.exec(step).one())
