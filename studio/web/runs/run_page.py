"""The page of one run: progress, curves, sample answers and actions."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response
from sqlmodel import Session

from studio.db.states import RunStatus
from studio.db.tables import Run
from studio.methods import METHODS
from studio.metrics import OTHER_HUE, MetricSpec
from studio.protocols.run_dir import RunDir
from studio.recipe import yaml
from studio.services.compare import compare
from studio.services.estimates import memory, run_progress
from studio.services.metrics import metrics
from studio.services.queue import overview, queue
from studio.services.runs import (
    artifacts,
    bulk_actions,
    failure_report,
    fixes,
    oom_retry,
    run_commands,
    runs,
)
from studio.services.samples import sample_ratings
from studio.services.workers import workers
from studio.web.compare import sample_table
from studio.web.forms import choices
from studio.web.http.deps import DB, Config, PostedForm
from studio.web.i18n import formatting
from studio.web.models import export_page
from studio.web.rendering.render import block, page, redirect
from studio.web.runs import health_signals, resolved_config, run_history

router = APIRouter(prefix="/runs", include_in_schema=False)

FIRST_EVENTS = 100
"""Events to read from the start of a run: they include its startup phases and first answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """One chart. An optional one is hidden until the run reports its metrics."""

    title: str
    keys: tuple[str, ...]
    hue: int
    smoothed_key: str = ""
    """Metric whose curve is smoothed."""
    is_default: bool = False
    is_hidden: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFigures:
    """Memory and time of a run, as text; empty if unknown."""

    memory_estimate: str
    length_note: str
    duration_estimate: str
    measurement_note: str


@router.get("/{run_id}")
def show(request: Request, run_id: int, db: DB, config: Config) -> Response:
    run = runs.get(db, run_id)
    folder = RunDir(config.runs / str(run.id))
    precisions = choices.precision_options(workers.training_hardware(db))
    return page(
        request,
        "runs/show.html",
        run=run,
        made=run_progress.measure(run),
        memory=_memory_figures(run),
        beginning=run_progress.startup_phases(run, folder.events.read_head(FIRST_EVENTS)),
        position=queue.position(db, run),
        wait=overview.estimate_wait(db, run),
        precisions=precisions,
        shrunk=oom_retry.list_shrinks(db, run_id),
        **_failure_context(db, run, folder),
        **_health_context(db, run),
        plots=_plots(run, metrics.list_keys(db, [run_id])),
        said=sample_table.table_across_steps(
            compare.list_samples(db, [run_id]), sample_ratings.load_scores(db, [run_id])
        ),
        rated=sample_ratings.count_rated(db, [run_id]),
        resolved=resolved_config.list_facts(run),
        files=artifacts.list_files(folder.artifacts),
        exports=export_page.list_exports(db, run, config.runs),
        choices=export_page.format_choices(db, run, config.runs),
        recipe=yaml.dump(run.recipe),
        past=run_history.load_history(db, run),
    )


@router.get("/{run_id}/history")
def history_block(request: Request, run_id: int, db: DB) -> Response:
    run = runs.get(db, run_id)
    return block(
        request, "runs/show.html", "history", run=run, past=run_history.load_history(db, run)
    )


@router.get("/{run_id}/wait")
def wait_block(request: Request, run_id: int, db: DB) -> Response:
    """Show why a run waits; empty once it has started."""
    run = runs.get(db, run_id)
    return block(request, "runs/show.html", "wait", run=run, wait=overview.estimate_wait(db, run))


@router.get("/{run_id}/row")
def row_block(request: Request, run_id: int, db: DB) -> Response:
    run = runs.get(db, run_id)
    return block(request, "runs/summary_row.html", "row", run=run, progress_of=run_progress.measure)


@router.get("/{run_id}/numerics")
def health_block(request: Request, run_id: int, db: DB) -> Response:
    run = runs.get(db, run_id)
    return block(request, "runs/show.html", "numerics", run=run, **_health_context(db, run))


@router.post("/{run_id}/again")
def run_again(request: Request, run_id: int, db: DB, posted: PostedForm) -> Response:
    """Submit the same recipe again, with the posted values in place of its own."""
    return redirect(request, f"/runs/{runs.resubmit(db, run_id, posted).id}")


@router.post("/{run_id}/trash")
def move_to_trash(request: Request, run_id: int, db: DB) -> Response:
    bulk_actions.move_to_trash(db, [runs.get(db, run_id).id or 0])
    return redirect(request, f"/runs/{run_id}")


@router.post("/{run_id}/restore")
def restore(request: Request, run_id: int, db: DB) -> Response:
    bulk_actions.restore(db, [run_id])
    return redirect(request, f"/runs/{run_id}")


@router.post("/{run_id}/delete")
def delete(request: Request, run_id: int, db: DB, config: Config) -> Response:
    runs.delete(db, run_id, config.runs)
    return redirect(request, "/")


def _command_handler(command: Callable[[Session, int], Run]) -> Callable[..., Response]:
    def asked(request: Request, run_id: int, db: DB) -> Response:
        command(db, run_id)
        return redirect(request, f"/runs/{run_id}")

    return asked


for verb, ask in {
    "cancel": run_commands.cancel,
    "keep": run_commands.stop_and_keep,
    "pause": run_commands.pause,
    "resume": run_commands.resume,
    "retry": run_commands.retry,
    "restart": run_commands.restart,
}.items():
    router.add_api_route(f"/{{run_id}}/{verb}", _command_handler(ask), methods=["POST"])


def _failure_context(db: DB, run: Run, folder: RunDir) -> dict[str, Any]:
    """Return the explanation of a failure, and its possible fixes."""
    report = failure_report.explain(db, run)
    if report is None:
        return {"why": None}
    lines = failure_report.log_tail(folder)
    all_fixes = failure_report.list_fixes(db, run, report)
    return {
        "why": report,
        "last_lines": lines,
        "repairs": [fix for fix in all_fixes if not fix.swap],
        "swaps": {
            fix.swap: [other for other in all_fixes if other.swap == fix.swap] for fix in all_fixes
        },
        "report": failure_report.render_markdown(run, report, lines),
    }


def _health_context(db: DB, run: Run) -> dict[str, Any]:
    """Return the context of the numerics section. A failed run shows its fixes with the failure."""
    alarms = runs.list_alarms(db, run.id or 0)
    fix_lists = (fixes.list_fixes(db, item.data["code"], run.recipe) for item in alarms)
    all_fixes = (
        {} if run.error_code else {item.title: item for group in fix_lists for item in group}
    )
    return {
        "signals": health_signals.list_signals(run),
        "alarms": alarms,
        "fixes": list(all_fixes.values()),
    }


def _memory_figures(run: Run) -> MemoryFigures:
    """Compare what was estimated at submission with what was measured."""
    estimate, measured = run.estimate.get("memory"), run.metrics.get("peak_memory_bytes")
    timing = run.estimate.get("timing", {})
    seconds = run_progress.measure(run).total_seconds if run.status is RunStatus.SUCCEEDED else None
    return MemoryFigures(
        memory_estimate=formatting.estimated_size(estimate["total"], memory.measured_peak(run))
        if estimate
        else "",
        length_note=_length_note(estimate["length"], run) if estimate else "",
        duration_estimate=formatting.estimated_duration(timing.get("seconds"), seconds),
        measurement_note=formatting.memory_measure_sentence(run.resolved) if measured else "",
    )


def _length_note(expected: int, run: Run) -> str:
    """Return a note if the longest example was not as long as estimated."""
    longest = run.resolved.get("longest_example", expected)
    if longest == expected:
        return ""
    return (
        f"The estimate assumed examples of {expected:,} tokens; the longest one here has "
        f"{longest:,}."
    )


def _plots(run: Run, reported: Sequence[str]) -> list[Plot]:
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
        Plot(title=formatting.metric_title(key), keys=(key,), hue=OTHER_HUE)
        for key in reported
        if key not in known
    ]
    return [*sorted(plots, key=lambda plot: not plot.is_default), *others]


def _plot(specs: Sequence[MetricSpec], title: str, reported: Sequence[str]) -> Plot:
    is_default = any(spec.is_always_drawn for spec in specs)
    return Plot(
        title=title,
        keys=tuple(spec.key for spec in specs),
        hue=specs[0].hue,
        smoothed_key=next((spec.key for spec in specs if spec.is_smoothed), ""),
        is_default=is_default,
        is_hidden=not is_default and not {spec.key for spec in specs} & set(reported),
    )
