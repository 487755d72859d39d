"""The Charts tab of a run: every metric it reports, as curves."""

from collections.abc import Sequence
from dataclasses import dataclass

from fastapi import APIRouter, Request
from fastapi.responses import Response

from studio.db.tables import Run
from studio.methods import METHODS
from studio.metrics import MetricSpec
from studio.services.metrics import metrics
from studio.services.runs import runs
from studio.web.http.deps import DB
from studio.web.i18n import formatting
from studio.web.runs.run_frame import tab_page

router = APIRouter(include_in_schema=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """One chart. An optional one is hidden until the run reports its metrics."""

    title: str
    keys: tuple[str, ...]
    unit: str = ""
    note: str = ""
    """What to look for."""
    smoothed_key: str = ""
    """Metric whose curve is smoothed."""
    is_default: bool = False
    is_hidden: bool = False


@router.get("/runs/{run_id}/charts")
def show_charts(request: Request, run_id: int, db: DB) -> Response:
    run = runs.get(db, run_id)
    plots = list_plots(run, metrics.list_keys(db, [run_id]))
    return tab_page(request, db, run, "charts", plots=plots)


def list_plots(run: Run, reported: Sequence[str]) -> list[Plot]:
    """Return the charts of the run's method, then one for each other metric it reported.

    Charts that the run may not need stay hidden until it reports one of their metrics.
    """
    known = {spec.key: spec for spec in METHODS[run.recipe.method].metrics.all}
    specs = [spec for spec in known.values() if spec.chart != "-"]
    titles = dict.fromkeys(spec.chart or spec.title for spec in specs)
    plots = [
        _plot([spec for spec in specs if (spec.chart or spec.title) == title], title, reported)
        for title in titles
    ]
    others = [
        Plot(title=formatting.metric_title(key), keys=(key,))
        for key in reported
        if key not in known
    ]
    return [*sorted(plots, key=lambda plot: not plot.is_default), *others]


def _plot(specs: Sequence[MetricSpec], title: str, reported: Sequence[str]) -> Plot:
    is_default = any(spec.is_always_drawn for spec in specs)
    return Plot(
        title=title,
        keys=tuple(spec.key for spec in specs),
        unit=specs[0].unit,
        note=next((spec.note for spec in specs if spec.note), ""),
        smoothed_key=next((spec.key for spec in specs if spec.is_smoothed), ""),
        is_default=is_default,
        is_hidden=not is_default and not {spec.key for spec in specs} & set(reported),
    )
