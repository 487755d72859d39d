"""The report of one run: what it achieved, how it was made, and what really ran."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pydantic import ValidationError
from sqlmodel import Session

from studio.db.states import RunStatus
from studio.db.tables import Run
from studio.protocols.run_dir import RunDir
from studio.recipe import yaml
from studio.recipe.dotted_keys import flatten
from studio.recipe.precision import PRECISIONS
from studio.run_manifest import Manifest
from studio.services.compare import compare
from studio.services.estimates import run_progress
from studio.services.metrics import metrics
from studio.services.metrics.metrics import Curves, Series
from studio.services.precision import magnitudes
from studio.services.results import improvements, run_verdict
from studio.services.runs import artifacts, failure_report, runs
from studio.web.compare.svg_chart import Chart, ChartLine, ChartOptions, ChartSize
from studio.web.i18n import formatting
from studio.web.rendering import live_figures
from studio.web.rendering.colours import DASHES, run_hue
from studio.web.reports.report_file import render_report
from studio.web.reports.report_parts import (
    BUCKETS,
    CHART_HEIGHT,
    CHART_WIDTH,
    DrawnChart,
    draw_chart,
    first_and_last,
    shorten,
)
from studio.web.reports.run_origin import describe_origin
from studio.web.runs import charts_tab, details_tab, numerics_tab
from studio.web.runs.charts_tab import Plot

MAX_CHARTS = 24
FIRST_CHARTS = 4
"""Charts that are not folded."""
SMOOTHING = 0.6
MAX_ALARMS = 50
MAX_NOTES, MAX_RECIPE, MAX_VALUE = 4000, 60_000, 300
MIN_POINTS = 2
"""A best value needs others that it is better than."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedSetting:
    """A setting that is not the default."""

    key: str
    value: str
    default: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRow:
    """A number format as planned and as measured in the training process."""

    name: str
    planned: str
    measured: str
    differs: bool


def render_run_report(db: Session, run: Run, folder: RunDir, *, is_file: bool) -> str:
    """Return the report of a run as HTML; a file has no links to the studio."""
    manifest = load_manifest(db, run, folder)
    charts = draw_charts(db, run)
    return render_report(
        "reports/run.html",
        run=run,
        name=shorten(run.name, MAX_VALUE),
        notes=shorten(run.notes, MAX_NOTES),
        is_file=is_file,
        made_at=datetime.now(UTC),
        figures=list_figures(run),
        charts=charts[:FIRST_CHARTS],
        more_charts=charts[FIRST_CHARTS:],
        answers=first_and_last(compare.list_samples(db, [run.id or 0])),
        changed=list_changed_settings(run),
        recipe=shorten(yaml.dump(run.recipe, has_comments=False), MAX_RECIPE),
        manifest=manifest,
        origin=describe_origin(run, manifest),
        why=failure_report.explain(db, run),
        **_result_context(db, run),
        **_audit_context(db, run, manifest, folder),
    )


def load_manifest(db: Session, run: Run, folder: RunDir) -> Manifest:
    """Return the manifest that a run wrote; before, or if it is damaged, one from its row."""
    try:
        return Manifest.model_validate_json(artifacts.read_manifest(db, run, folder))
    except (OSError, ValidationError):
        return artifacts.build_manifest(db, run, folder)


def list_figures(run: Run) -> list[tuple[str, str]]:
    """Return the title and value of each figure that the run has reported."""
    names = [*live_figures.tiles(run, "always"), *live_figures.tiles(run, "result")]
    return [
        (formatting.metric_title(name), live_figures.format_figure(run, name))
        for name in names
        if name in run.metrics
    ]


def list_changed_settings(run: Run) -> list[ChangedSetting]:
    """Return the settings that are not defaults, those without a default first."""
    defaults = compare.method_defaults(run.recipe.method, run.recipe.adapter.kind)
    return [
        ChangedSetting(
            key=setting.key,
            value=shorten(formatting.setting(setting.values[0]), MAX_VALUE),
            default=shorten(formatting.setting(defaults.get(setting.key)), MAX_VALUE),
        )
        for setting in compare.diff_recipes([run])
        if setting.key != compare.NAME_KEY and not setting.defaults[0]
    ]


def draw_charts(db: Session, run: Run) -> list[DrawnChart]:
    """Draw the charts of a run's page that have values."""
    run_id = run.id or 0
    reported = metrics.list_keys(db, [run_id])
    plots = [plot for plot in charts_tab.list_plots(run, reported) if {*plot.keys} & {*reported}]
    plots = plots[:MAX_CHARTS]
    keys = [key for plot in plots for key in plot.keys if key in reported]
    curves = metrics.load_curves(db, [run_id], keys, buckets=BUCKETS)
    return [_draw_plot(plot, run_id, curves, f"chart-{at}") for at, plot in enumerate(plots)]


def _draw_plot(plot: Plot, run_id: int, curves: Curves, name: str) -> DrawnChart:
    lines = [
        ChartLine(
            series=series,
            label=formatting.metric_title(key),
            hue=run_hue(run_id),
            dash=at % len(DASHES),
            smoothing=SMOOTHING if key == plot.smoothed_key else 0,
            best=_best_point(key, curves.x, series),
        )
        for at, key in enumerate(plot.keys)
        if (series := curves.series.get((run_id, key)))
    ]
    options = ChartOptions(
        title=formatting.axis_label(plot.keys[0], plot.title, plot.unit),
        x_axis="step",
        y_metric=plot.keys[0],
        name=name,
        size=ChartSize(width=CHART_WIDTH, height=CHART_HEIGHT),
    )
    return draw_chart(Chart(x=curves.x, lines=lines, options=options))


def _best_point(key: str, x: Sequence[float], series: Series) -> tuple[float, float] | None:
    better = formatting.starred_direction(key)
    points = [
        (place, value) for place, value in zip(x, series.mean, strict=True) if value is not None
    ]
    if not better or len(points) < MIN_POINTS:
        return None
    return (min if better == "lower" else max)(points, key=lambda point: point[1])


def _result_context(db: Session, run: Run) -> dict[str, Any]:
    """Return the verdict of a run that succeeded, and what to try next."""
    progress = run_progress.measure(run)
    if run.status is not RunStatus.SUCCEEDED:
        return {"verdict": None, "improvements": [], "progress": progress}
    verdict = run_verdict.load_verdict(db, run)
    next_steps = improvements.list_improvements(db, run, verdict)
    return {"verdict": verdict, "improvements": next_steps, "progress": progress}


def _audit_context(db: Session, run: Run, manifest: Manifest, folder: RunDir) -> dict[str, Any]:
    """Return what precision was requested, what ran, and what was found."""
    alarms = runs.list_alarms(db, run.id or 0)
    measured = magnitudes.read_magnitudes(folder.events)
    return {
        "precision": PRECISIONS[run.recipe.precision],
        "audit": list_audit(manifest.precision.resolved, manifest.precision.audited),
        "alarms": alarms[:MAX_ALARMS],
        "alarm_count": len(alarms),
        "findings": measured.findings if measured else (),
        "signals": numerics_tab.list_signals(run),
    }


def list_audit(planned: Mapping[str, Any], audited: Mapping[str, Any]) -> list[AuditRow]:
    """Compare the planned formats with those measured before the first step."""
    plan = flatten(dict(planned))
    return [
        AuditRow(
            name=details_tab.fact_title(key),
            planned=shorten(formatting.setting(plan.get(key)), MAX_VALUE),
            measured=shorten(formatting.setting(value), MAX_VALUE),
            differs=key in plan and plan[key] != value,
        )
        for key, value in flatten(dict(audited)).items()
    ]
