"""The page of one run: progress, curves, sample answers, history and actions."""

import signal
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Form, Request
from fastapi.responses import Response
from sqlmodel import Session

from studio.db.states import RunStatus
from studio.db.tables import Attempt, Run, RunEvent
from studio.methods import METHODS, METRICS
from studio.metrics import OTHER_HUE, MetricSpec
from studio.protocols.run_dir import RunDir
from studio.recipe import yaml
from studio.recipe.dotted_keys import flatten
from studio.recipe.precision import PRECISIONS
from studio.services.compare import compare
from studio.services.estimates import memory, run_progress
from studio.services.metrics import metrics
from studio.services.precision import magnitudes
from studio.services.queue import overview, queue
from studio.services.runs import (
    artifacts,
    attempts,
    bulk_actions,
    failure_report,
    fixes,
    nonfinite_steps,
    run_commands,
    run_events,
    runs,
)
from studio.services.runs.attempts import LOST
from studio.services.samples import sample_ratings
from studio.services.workers import workers
from studio.web.compare import sample_table
from studio.web.forms import choices
from studio.web.http.deps import DB, Config, PostedForm
from studio.web.i18n import formatting
from studio.web.models import export_page
from studio.web.rendering.render import block, page, redirect, referring_page, wants_fragment

router = APIRouter(include_in_schema=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """One signal of a run's numerical health."""

    name: str
    value: str
    meaning: str


def list_signals(run: Run) -> list[Signal]:
    """Return the newest value of each signal that the run has reported."""
    return [
        Signal(
            name=formatting.metric_title(name),
            value=formatting.metric_value(run.metrics[name], name),
            meaning=spec.meaning,
        )
        for name, spec in METRICS.items()
        if spec.meaning and name in run.metrics
    ]


FACT_NAMES = (
    *("Attention", "Attention kernel", "Autocast", "Compute", "Device", "Device name"),
    *("Dropped rows", "Effective batch size", "Embedding", "Gradients", "Kept in float32"),
    *("Linear", "Longest answer", "Longest example", "Master", "Matmul", "Matmul emulated"),
    *("Optimizer", "Optimizer states", "Parameters", "Scaler", "Seed", "Train examples"),
    *("Train rows", "Train tokens", "Trainable parameters", "Trained", "Trained tensors"),
    *("Truncated rows", "Validation rows", "Validation tokens", "Weights"),
)
"""Titles of the values that runs report most often. Other titles are not translated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """A requested value beside the actual one."""

    name: str
    requested: str
    actual: str
    differs: bool


def list_facts(run: Run) -> list[Fact]:
    """List requested beside actual values; for an audited run also plan beside audit."""
    resolved = dict(run.resolved)
    requested = _requested(run) | resolved.pop("plan", {})
    actual = resolved | resolved.pop("audit", {})
    return [_fact(name, requested, value) for name, value in flatten(actual).items()]


def _requested(run: Run) -> dict[str, Any]:
    """Return what the recipe requests, under the names that a run reports."""
    steps = run.recipe.optimisation
    batch = steps.per_device_train_batch_size * steps.gradient_accumulation_steps
    mode = asdict(PRECISIONS[run.recipe.precision])
    return mode | {"seed": steps.seed, "effective_batch_size": batch}


def _fact(name: str, requested: dict[str, Any], actual: object) -> Fact:
    requested_value = requested.get(name)
    return Fact(
        name=name.rpartition(".")[2] if "." in name else formatting.metric_title(name),
        requested=formatting.setting(requested_value),
        actual=formatting.size(actual)
        if isinstance(actual, int) and name.endswith("_bytes")
        else formatting.setting(actual),
        differs=name in requested and requested_value != actual,
    )


MAX_EVENTS = 200
"""How many events the page shows; the REST API returns the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventLine:
    """One event, or several consecutive ones of the same kind."""

    at: datetime
    kind: str
    text: str
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRow:
    """One attempt as the page shows it."""

    attempt: Attempt
    seconds: float | None
    end_reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunHistory:
    events: list[EventLine]
    last_id: int
    """Id of the newest event shown; the event stream continues after it."""
    is_truncated: bool
    attempts: list[AttemptRow]


def load_history(db: Session, run: Run) -> RunHistory:
    run_id = run.id or 0
    events = runs.list_newest_events(db, run_id, limit=MAX_EVENTS)
    return RunHistory(
        events=_event_lines(events),
        last_id=(events[0].id or 0) if events else 0,
        is_truncated=len(events) == MAX_EVENTS,
        attempts=[_attempt_row(run, attempt) for attempt in attempts.list_attempts(db, run_id)],
    )


def _event_lines(events: Sequence[RunEvent]) -> list[EventLine]:
    """Describe events, newest first. Consecutive checkpoints share a line: that of the newest."""
    lines: list[EventLine] = []
    for row in events:
        previous = lines[-1] if lines else None
        if previous and previous.kind == row.kind == "checkpointed":
            lines[-1] = replace(previous, count=previous.count + 1)
        else:
            lines.append(EventLine(at=row.at, kind=row.kind, text=run_events.to_event(row).words))
    return lines


def _attempt_row(run: Run, attempt: Attempt) -> AttemptRow:
    end = attempt.ended_at
    seconds = run_progress.elapsed_seconds(attempt.began_at, end) if end else None
    ended = _end_reason(attempt) if end else _unfinished_state(run, attempt)
    return AttemptRow(attempt=attempt, seconds=seconds, end_reason=ended)


def _unfinished_state(run: Run, attempt: Attempt) -> str:
    if attempt.number != run.attempt:
        return "end not recorded"
    # Its final event arrives a moment before its process exits.
    return "in progress" if run.status.is_live else run.status.value


def _end_reason(attempt: Attempt) -> str:
    code = attempt.exit_code
    if attempt.outcome != LOST:
        return attempt.outcome
    if code is not None and -code in list(signal.Signals):
        return f"lost: killed by {signal.Signals(-code).name}"
    return "lost: no exit code" if code is None else f"lost: exit code {code}"


@router.get("/runs/{run_id}/broken")
def show_nonfinite_step(
    request: Request, run_id: int, db: DB, config: Config, step: int = 0
) -> Response:
    run = runs.get(db, run_id)
    log = RunDir(config.runs / str(run_id)).log
    step_report = nonfinite_steps.inspect_step(db, run_id, step, log)
    return page(request, "runs/nonfinite_step.html", run=run, found=step_report)


@router.post("/samples/{sample_id}/rating")
def rate(
    request: Request,
    sample_id: int,
    db: DB,
    score: Annotated[int, Form()] = 0,
    *,
    blind: Annotated[bool, Form()] = False,
) -> Response:
    """Save a score, or clear it with 0. A blind page learns nothing about the run."""
    sample = sample_ratings.get_rateable_sample(db, sample_id)
    previous = sample_ratings.rate(db, sample, score or None)
    run_id = sample.run_id
    if not wants_fragment(request):
        there = referring_page(request, "")
        return redirect(request, f"{there}#answers" if there else f"/runs/{run_id}")
    return page(
        request,
        "compare/rating.html",
        sample=sample,
        score=score or None,
        before=previous,
        blind=blind,
        run=runs.get(db, run_id),
        rated=sample_ratings.count_rated(db, [run_id]),
    )


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


@router.get("/runs/{run_id}")
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
        shrunk=attempts.list_shrinks(db, run_id),
        **_failure_context(db, run, folder),
        **_health_context(db, run, folder),
        plots=_plots(run, metrics.list_keys(db, [run_id])),
        sample_table=sample_table.table_across_steps(
            compare.list_samples(db, [run_id]), sample_ratings.load_scores(db, [run_id])
        ),
        rated=sample_ratings.count_rated(db, [run_id]),
        resolved=list_facts(run),
        files=artifacts.list_files(folder.artifacts),
        exports=export_page.list_exports(db, run, config.runs),
        choices=export_page.format_choices(db, run, config.runs),
        recipe=yaml.dump(run.recipe),
        past=load_history(db, run),
    )


@router.get("/runs/{run_id}/history")
def history_block(request: Request, run_id: int, db: DB) -> Response:
    run = runs.get(db, run_id)
    return block(request, "runs/show.html", "history", run=run, past=load_history(db, run))


@router.get("/runs/{run_id}/wait")
def wait_block(request: Request, run_id: int, db: DB) -> Response:
    """Show why a run waits; empty once it has started."""
    run = runs.get(db, run_id)
    return block(request, "runs/show.html", "wait", run=run, wait=overview.estimate_wait(db, run))


@router.get("/runs/{run_id}/row")
def row_block(request: Request, run_id: int, db: DB) -> Response:
    run = runs.get(db, run_id)
    return block(request, "runs/summary_row.html", "row", run=run, progress_of=run_progress.measure)


@router.get("/runs/{run_id}/numerics")
def health_block(request: Request, run_id: int, db: DB, config: Config) -> Response:
    run = runs.get(db, run_id)
    folder = RunDir(config.runs / str(run_id))
    return block(request, "runs/show.html", "numerics", run=run, **_health_context(db, run, folder))


@router.post("/runs/{run_id}/again")
def run_again(request: Request, run_id: int, db: DB, posted: PostedForm) -> Response:
    """Submit the same recipe again, with the posted values in place of its own."""
    return redirect(request, f"/runs/{runs.resubmit(db, run_id, posted).id}")


@router.post("/runs/{run_id}/trash")
def move_to_trash(request: Request, run_id: int, db: DB) -> Response:
    bulk_actions.move_to_trash(db, [runs.get(db, run_id).id or 0])
    return redirect(request, f"/runs/{run_id}")


@router.post("/runs/{run_id}/restore")
def restore(request: Request, run_id: int, db: DB) -> Response:
    bulk_actions.restore(db, [run_id])
    return redirect(request, f"/runs/{run_id}")


@router.post("/runs/{run_id}/delete")
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
    router.add_api_route(f"/runs/{{run_id}}/{verb}", _command_handler(ask), methods=["POST"])


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


def _health_context(db: DB, run: Run, folder: RunDir) -> dict[str, Any]:
    """Return the context of the numerics section. A failed run shows its fixes with the failure."""
    alarms = runs.list_alarms(db, run.id or 0)
    fix_lists = (fixes.list_fixes(db, item.data["code"], run.recipe) for item in alarms)
    all_fixes = (
        {} if run.error_code else {item.title: item for group in fix_lists for item in group}
    )
    return {
        "signals": list_signals(run),
        "alarms": alarms,
        "fixes": list(all_fixes.values()),
        "measured": magnitudes.read_magnitudes(folder.events),
        "ranges": magnitudes.format_ranges(),
        "update_ranges": magnitudes.update_ranges(),
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
