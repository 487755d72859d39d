"""Sweeps: the form that creates one, and the page with its trials and best settings."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from sqlmodel import Session

from studio.db.tables import Sweep
from studio.errors import InvalidError
from studio.recipe.search_space import Range, Scalar, value_text
from studio.services import experiments
from studio.services.estimates import run_progress
from studio.services.studies import studies
from studio.services.sweeps import sweep_preview, sweeps
from studio.services.sweeps.sweeps import Trial
from studio.web.http.deps import DB, ReadDB
from studio.web.i18n import formatting
from studio.web.rendering.render import block, page, redirect
from studio.web.sweeps import sweep_form
from studio.web.sweeps.sweep_form import PostedSweepDraft, SweepDraft

router = APIRouter(prefix="/sweeps", include_in_schema=False)

MAX_LISTED = 100

WIDTH, HEIGHT = 320, 150
MARGIN = 10
"""Padding, so that no mark is cut off."""

Source = Annotated[str, Query(alias="from", max_length=50)]


@router.get("")
def newest(request: Request, db: DB) -> Response:
    return page(request, "sweeps/list.html", sweeps=sweeps.newest(db, limit=MAX_LISTED))


@router.get("/new")
def new(request: Request, db: DB, source: Source = "", experiment: int | None = None) -> Response:
    return _form(request, db, SweepDraft(source=source or f"experiment:{experiment}"))


@router.post("/new")
def create(request: Request, draft: PostedSweepDraft, seen: ReadDB, db: DB) -> Response:
    _experiment, recipe = studies.resolve_source(seen, draft.source)
    try:
        plan = sweep_form.build_plan(draft, recipe)
        # Checking hundreds of settings takes a while: the database is locked only after it.
        preview = sweep_preview.preview(seen, recipe, plan)
    except InvalidError as error:
        return _form(request, seen, draft, error)
    source_experiment, _recipe = studies.resolve_source(db, draft.source)
    experiment = experiments.own_or_copy(db, source_experiment, parent=draft.source)
    sweep = sweeps.create(db, experiment, plan, recipe, preview)
    return redirect(request, f"/sweeps/{sweep.id}")


@router.post("/new/prospect")
def preview_sweep(request: Request, draft: PostedSweepDraft, db: ReadDB) -> Response:
    """Preview the sweep that the form describes; nothing is written."""
    _experiment, recipe = studies.resolve_source(db, draft.source)
    context: dict[str, Any] = {"prospect": None, "problem": None}
    try:
        plan = sweep_form.build_plan(draft, recipe)
        context["prospect"] = sweep_preview.preview(db, recipe, plan)
    except InvalidError as error:
        context["problem"] = error
    return block(request, "sweeps/new.html", "prospect", strategy=draft.strategy, **context)


@router.get("/{sweep_id}")
def show(request: Request, sweep_id: int, db: DB) -> Response:
    sweep = sweeps.get(db, sweep_id)
    all_trials = sweeps.list_trials(db, sweep)
    best = sweeps.best(sweep, all_trials)
    return page(
        request,
        "sweeps/show.html",
        sweep=sweep,
        trials=all_trials,
        best=best,
        ended=sum(trial.run.status.is_final for trial in all_trials),
        done=sum(trial.state == "done" for trial in all_trials),
        enough=sweeps.MIN_TRIALS,
        labels=sweep_form.field_labels(sweep.recipe, list(sweep.space)),
        plots=build_plots(sweep, all_trials, best),
        left=_seconds_left(sweep, all_trials),
        progress_of=run_progress.measure,
    )


@router.post("/{sweep_id}/{verb}")
def control_sweep(request: Request, sweep_id: int, verb: str, db: DB) -> Response:
    actions = {"pause": sweeps.pause, "resume": sweeps.resume, "stop": sweeps.stop}
    if verb == "delete":
        experiment_id = sweeps.get(db, sweep_id).experiment_id
        sweeps.delete(db, sweep_id)
        return redirect(request, f"/experiments/{experiment_id}")
    if verb not in actions:
        raise InvalidError(f"A sweep cannot {verb}.")
    actions[verb](db, sweep_id)
    return redirect(request, f"/sweeps/{sweep_id}")


def _form(
    request: Request, db: Session, draft: SweepDraft, problem: InvalidError | None = None
) -> Response:
    experiment, recipe = studies.resolve_source(db, draft.source)
    problems = {problem.param: f"{problem.message} {problem.hint}".strip()} if problem else {}
    sections = sweep_form.form_sections(recipe, draft, problems)
    return page(
        request,
        "sweeps/new.html",
        status=422 if problem else 200,
        experiment=experiment,
        draft=draft,
        parts=sections,
        problems=problems,
        listed=sweep_form.list_problems(sections, problems),
        metrics=sweep_form.metric_choices(recipe),
        most=sweep_preview.MAX_RUNS,
        prospect=None,
        problem=None,
        strategy=draft.strategy,
    )


def _seconds_left(sweep: Sweep, all_trials: list[Trial]) -> float | None:
    """Estimate how many seconds a sweep still takes, from the runs that are done."""
    durations = [
        seconds
        for trial in all_trials
        if trial.state == "done" and (seconds := run_progress.measure(trial.run).total_seconds)
    ]
    if not durations or sweep.status.is_final:
        return None
    ended = (
        sum(trial.run.status.is_final for trial in all_trials) + sweep.submitted - len(all_trials)
    )
    return (sweep.count - ended) * sum(durations) / len(durations) / sweep.parallel


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    x: float
    y: float
    kind: str
    """best, pruned or done."""
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """One plot, `WIDTH` by `HEIGHT`."""

    name: str
    """Dotted name of the setting."""
    marks: Sequence[Mark]
    ticks: Sequence[str]
    """Labels of the x axis, at equal distances."""
    is_range: bool
    """Whether the first and the last tick are at the ends of the axis."""
    y_min: str
    y_max: str
    """The ends of the y axis."""


def build_plots(sweep: Sweep, made: Sequence[Trial], best: Trial | None) -> list[Plot]:
    """Plot each setting that varies; empty with fewer than two results."""
    with_value = [trial for trial in made if trial.value is not None and trial.state != "failed"]
    if len(with_value) < 2:  # noqa: PLR2004 -- one point shows nothing
        return []
    values = [trial.value for trial in with_value if trial.value is not None]
    low, high = min(values), max(values)
    plots = []
    for name in sweep.space:
        varied = [trial for trial in with_value if name in trial.settings]
        places, ticks = _x_positions(sweep, name, [trial.settings[name] for trial in varied])
        if len(ticks) < 2:  # noqa: PLR2004 -- it does not vary
            continue
        marks = [
            Mark(
                x=x,
                y=_y_position(trial.value or 0, low, high),
                kind=_mark_kind(trial, best),
                title=_mark_title(trial),
            )
            for x, trial in zip(places, varied, strict=True)
        ]
        ends = {"y_min": formatting.number(low), "y_max": formatting.number(high)}
        # Draw the best mark last, on top of the others.
        marks.sort(key=lambda mark: mark.kind == "best")
        is_range = isinstance(sweep.space[name], Range)
        plots.append(Plot(name=name, marks=marks, ticks=ticks, is_range=is_range, **ends))
    return plots


def _x_positions(
    sweep: Sweep, name: str, values: Sequence[Scalar]
) -> tuple[list[float], list[str]]:
    space = sweep.space[name]
    width = WIDTH - 2 * MARGIN
    if not isinstance(space, Range):
        # Listed values get columns of equal width.
        columns = {value_text(item): index for index, item in enumerate(space.values)}
        column_width = width / len(columns)
        column_x = {
            word: round(MARGIN + (index + 0.5) * column_width, 1) for word, index in columns.items()
        }
        return [column_x[value_text(item)] for item in values], list(column_x)
    scale = math.log if space.log else float
    low, high = scale(space.low), scale(space.high)

    def across(value: float) -> float:
        return round(MARGIN + width * (scale(value) - low) / (high - low), 1)

    middle = math.sqrt(space.low * space.high) if space.log else (space.low + space.high) / 2
    ends = (space.low, space.rounded(middle), space.high)
    places = [across(item) for item in values if isinstance(item, int | float)]
    return places, [formatting.setting(item) for item in ends]


def _y_position(value: float, low: float, high: float) -> float:
    share = (value - low) / (high - low) if high > low else 0.5
    return round(HEIGHT - MARGIN - share * (HEIGHT - 2 * MARGIN), 1)


def _mark_kind(trial: Trial, best: Trial | None) -> str:
    return "best" if best is not None and trial.number == best.number else trial.state


def _mark_title(trial: Trial) -> str:
    settings = ", ".join(f"{name}: {value_text(value)}" for name, value in trial.settings.items())
    return f"Run {trial.run.id}: {formatting.number(trial.value)} ({settings})"
