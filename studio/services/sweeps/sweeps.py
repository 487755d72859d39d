"""Sweeps and their trials: create, advance, pause and stop them. Their runs tell what is left."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from sqlmodel import Session, col, func, select, update

from studio.db.states import RunStatus, SweepStatus
from studio.db.tables import Experiment, Metric, Run, Sweep
from studio.errors import ConflictError, InvalidError, NotFoundError
from studio.evaluation.run_metrics import is_evaluated
from studio.methods import AnyRecipe
from studio.protocols.events import Failed
from studio.recipe.dotted_keys import flatten
from studio.recipe.search_space import Scalar
from studio.services import experiments
from studio.services.accounts import owners
from studio.services.evaluations import evaluations
from studio.services.queue import queue
from studio.services.runs import run_commands, runs, states
from studio.services.sweeps import sweep_preview
from studio.services.sweeps.sweep_preview import SweepPlan, SweepPreview, TrialSettings

MIN_TRIALS = 8
"""Runs that must have finished before setting importance is computed."""

State = Literal["going", "done", "pruned", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One run of a sweep: its settings and its result."""

    run: Run
    number: int
    settings: Mapping[str, Scalar]
    """The varied settings that have an effect on this run."""
    state: State
    value: float | None
    """Latest value of the sweep's metric; None unless finite."""
    intermediate_values: Sequence[float | None] = ()
    """All its values, in order; None where not finite. Empty unless requested."""


def list_trials(db: Session, sweep: Sweep, *, courses: bool = False) -> list[Trial]:
    """Return the trials of a sweep in the order in which they were queued."""
    query = select(Run).where(Run.sweep_id == sweep.id).order_by(col(Run.trial))
    rows = db.exec(query).all()
    values_by_run = _load_intermediate_values(db, sweep, rows) if courses else {}
    return [
        Trial(
            run=run,
            number=run.trial or 0,
            settings=_trial_settings(sweep, run),
            state=_trial_state(db, sweep, run),
            value=_trial_value(sweep, run),
            intermediate_values=values_by_run.get(run.id or 0, ()),
        )
        for run in rows
    ]


def best(sweep: Sweep, trials: Sequence[Trial]) -> Trial | None:
    """Return the best of the completed trials."""
    done = [trial for trial in trials if trial.state == "done" and trial.value is not None]
    sign = 1 if sweep.direction == "minimise" else -1
    return min(done, key=lambda one: sign * (one.value or 0), default=None)


def _trial_settings(sweep: Sweep, run: Run) -> dict[str, Scalar]:
    values = flatten(run.recipe.model_dump())
    return {name: values[name] for name in sweep.space if name in values}


def _trial_state(db: Session, sweep: Sweep, run: Run) -> State:
    if not run.status.is_final or _is_being_evaluated(db, sweep, run):
        return "going"
    if run.status is RunStatus.SUCCEEDED:
        return "pruned" if run.is_pruned else "done"
    return "failed"


def _is_being_evaluated(db: Session, sweep: Sweep, run: Run) -> bool:
    """Whether the value that the sweep searches for is still being measured, after training."""
    if not is_evaluated(sweep.metric) or sweep.metric in run.metrics:
        return False
    return evaluations.find_share(db, run.id or 0) is not None


def _trial_value(sweep: Sweep, run: Run) -> float | None:
    name = sweep.metric
    if run.recipe.checkpoints.load_best_model_at_end and f"best_{name}" in run.metrics:
        name = f"best_{name}"  # The value of the weights that were kept.
    value = run.metrics.get(name)
    return value if value is not None and math.isfinite(value) else None


def _load_intermediate_values(
    db: Session, sweep: Sweep, rows: Sequence[Run]
) -> dict[int, list[float | None]]:
    values_by_run: dict[int, list[float | None]] = defaultdict(list)
    query = (
        select(Metric.run_id, Metric.value)
        .where(col(Metric.run_id).in_([run.id for run in rows]), Metric.key == sweep.metric)
        .order_by(col(Metric.run_id), col(Metric.step))
    )
    for run_id, value in db.exec(query):
        values_by_run[run_id].append(value)
    return values_by_run


MAX_REFUSED = 50
"""A sweep fails after this many proposals that cannot run."""

MAX_QUEUED_AT_ONCE = 8
"""Runs queued in one transaction: limits how long it locks the database."""

_TRAINING = frozenset({RunStatus.STARTING, RunStatus.RUNNING})
_UNFINISHED = frozenset({RunStatus.QUEUED, RunStatus.STOPPING}) | _TRAINING
"""Statuses that keep the next run waiting. A run that a user paused does not."""


def create(
    db: Session,
    experiment: Experiment,
    plan: SweepPlan,
    recipe: AnyRecipe | None = None,
    preview: SweepPreview | None = None,
) -> Sweep:
    """Create a sweep over an experiment's recipe or another; a worker queues its runs.

    Settings that cannot run here are excluded. A caller that has already computed the preview can
    pass it, to keep the transaction short; changes since then are reported when a run is queued.

    Raises:
        ForbiddenError: The experiment belongs to another member.
        InvalidError: The plan is not valid, or none of its settings can run.

    """
    owners.require(db, "experiments", [experiment.id or 0])
    recipe = recipe or experiment.recipe
    preview = preview or sweep_preview.preview(db, recipe, plan)
    metric, direction = plan.goal(recipe)
    sweep = Sweep(
        experiment_id=experiment.id or 0,
        name=experiment.name,
        recipe=recipe,
        space=preview.space,
        strategy=plan.strategy,
        count=preview.count,
        metric=metric,
        direction=direction,
        seed=plan.seed,
        is_pruning=plan.is_pruning,
        parallel=plan.parallel,
        planned=list(preview.planned),
    )
    db.add(sweep)
    db.flush()
    return sweep


def get(db: Session, sweep_id: int) -> Sweep:
    sweep = db.get(Sweep, sweep_id)
    if sweep is None:
        raise NotFoundError(f"Sweep {sweep_id} does not exist.", hint="It may have been deleted.")
    return sweep


def newest(db: Session, *, limit: int, before: int | None = None) -> Sequence[Sweep]:
    query = select(Sweep).order_by(col(Sweep.id).desc()).limit(limit)
    if before is not None:
        query = query.where(col(Sweep.id) < before)
    return db.exec(query).all()


def list_running(db: Session) -> Sequence[Sweep]:
    """Return the running sweeps, oldest first."""
    query = select(Sweep).where(Sweep.status == SweepStatus.RUNNING).order_by(col(Sweep.id))
    return db.exec(query).all()


def change_marker(db: Session, sweep: Sweep) -> tuple[object, ...]:
    """Return a value that changes whenever a sweep needs attention."""
    rows = db.exec(
        select(Run.id, Run.status).where(Run.sweep_id == sweep.id).order_by(col(Run.id))
    ).all()
    training = [number for number, status in rows if status in _TRAINING]
    counted = select(func.count()).where(
        col(Metric.run_id).in_(training), Metric.key == sweep.metric
    )
    metric_count = db.exec(counted).one() if sweep.is_pruning and training else 0
    evaluating = [run.id for run in _list_being_evaluated(db, sweep)]
    return (sweep.submitted, len(sweep.refused), metric_count, *evaluating, *rows)


def count_queueable(db: Session, sweep: Sweep) -> int:
    """Return how many runs a sweep may queue at once."""
    busy = select(func.count()).where(Run.sweep_id == sweep.id, col(Run.status).in_(_UNFINISHED))
    # What is searched next depends on the values, unless all is planned.
    evaluating = [] if sweep.planned else _list_being_evaluated(db, sweep)
    room = sweep.parallel - db.exec(busy).one() - len(evaluating)
    return max(0, min(room, sweep.count - sweep.submitted, MAX_QUEUED_AT_ONCE))


def advance(db: Session, sweep_id: int, proposed: Sequence[TrialSettings] = ()) -> None:
    """Queue planned or proposed runs while slots are free, and end a sweep that is done.

    The state is in the database, written in the same transaction as the runs, so a kill neither
    repeats nor loses one.
    """
    sweep = get(db, sweep_id)
    if sweep.status is not SweepStatus.RUNNING:
        return
    room = count_queueable(db, sweep)
    next_settings = sweep.planned[sweep.submitted :] or proposed
    for settings in next_settings[:room]:
        _submit(db, sweep, settings)
    if len(sweep.refused) >= MAX_REFUSED:
        _end(sweep, SweepStatus.FAILED)
    elif sweep.submitted == sweep.count and not _unfinished(db, sweep):
        _end(sweep, SweepStatus.FINISHED)


def prune(db: Session, sweep: Sweep, run_ids: Sequence[int]) -> None:
    """Stop unpromising runs. Their trained weights are kept."""
    for run_id in run_ids:
        run = db.get(Run, run_id)
        if run is not None and run.status is RunStatus.RUNNING:
            run.is_pruned = True
            states.record_event(db, run, "pruned", {"sweep": sweep.id, "step": run.step})
            run_commands.stop_and_keep(db, run_id)


def pause(db: Session, sweep_id: int) -> Sweep:
    """Start no further runs. Training runs continue; queued runs are held.

    Raises:
        ConflictError: It is not running.

    """
    sweep = _move(db, sweep_id, SweepStatus.RUNNING, SweepStatus.PAUSED)
    _hold(db, sweep, held=True)
    return sweep


def resume(db: Session, sweep_id: int) -> Sweep:
    """Resume a paused sweep.

    Raises:
        ConflictError: It is not paused.

    """
    sweep = _move(db, sweep_id, SweepStatus.PAUSED, SweepStatus.RUNNING)
    _hold(db, sweep, held=False)
    return sweep


def stop(db: Session, sweep_id: int) -> Sweep:
    """Stop a sweep: cancel queued runs, and stop training runs but keep their results.

    Raises:
        ConflictError: It has ended.

    """
    sweep = get(db, sweep_id)
    if sweep.status.is_final:
        raise ConflictError(f"Sweep {sweep_id} has already ended.")
    _end(sweep, SweepStatus.STOPPED)
    for run in list_runs(db, sweep_id):
        if run.status in (RunStatus.QUEUED, RunStatus.PAUSED):
            run_commands.cancel(db, run.id or 0)
        elif run.status in _TRAINING:
            run_commands.stop_and_keep(db, run.id or 0)
    return sweep


def fail(db: Session, sweep_id: int, failure: Failed) -> None:
    """End a sweep that cannot continue. Its unfinished runs stay as they are."""
    sweep = get(db, sweep_id)
    sweep.error = f"{failure.message} {failure.hint}".strip()
    _end(sweep, SweepStatus.FAILED)


def delete(db: Session, sweep_id: int) -> None:
    """Delete a sweep that has ended. Its runs stay in their experiment.

    Raises:
        ConflictError: It has not ended.

    """
    sweep = get(db, sweep_id)
    if not sweep.status.is_final:
        raise ConflictError(f"Sweep {sweep_id} is {sweep.status}.", hint="Stop it first.")
    db.exec(update(Run).where(col(Run.sweep_id) == sweep_id).values(sweep_id=None, trial=None))
    db.delete(sweep)


def list_runs(db: Session, sweep_id: int) -> Sequence[Run]:
    return db.exec(select(Run).where(Run.sweep_id == sweep_id).order_by(col(Run.trial))).all()


def _submit(db: Session, sweep: Sweep, settings: TrialSettings) -> None:
    experiment = experiments.get(db, sweep.experiment_id)
    try:
        recipe = sweep_preview.apply_settings(sweep.recipe, settings)
        run = runs.submit(db, experiment, recipe.model_dump())
    except InvalidError as error:
        # Assign a new list: SQLAlchemy does not notice changes inside the old one.
        sweep.refused = [*sweep.refused, settings]
        sweep.error = f"{error.message} {error.hint}".strip()
        if sweep.planned:
            sweep.submitted += 1  # Skip these settings; the next ones may be able to run.
        return
    run.sweep_id, run.trial = sweep.id, sweep.submitted
    if "precision" not in settings:
        run.precision_reason = experiment.precision_reason
    run.name = _run_name(sweep, settings)
    sweep.submitted += 1


def _run_name(sweep: Sweep, settings: TrialSettings) -> str:
    """Name a run after its settings, shortened to the limit."""
    number = f" #{sweep.submitted + 1}"
    title = f"{sweep.name} {sweep_preview.format_settings(settings)}"
    return title[: experiments.NAME_LIMIT - len(number)] + number


def _unfinished(db: Session, sweep: Sweep) -> bool:
    runs_of_sweep = list_runs(db, sweep.id or 0)
    return any(not run.status.is_final for run in runs_of_sweep) or bool(
        _list_being_evaluated(db, sweep)
    )


def _list_being_evaluated(db: Session, sweep: Sweep) -> list[Run]:
    if not is_evaluated(sweep.metric):
        return []
    found = list_runs(db, sweep.id or 0)
    return [run for run in found if _is_being_evaluated(db, sweep, run)]


def _end(sweep: Sweep, status: SweepStatus) -> None:
    sweep.status, sweep.finished_at = status, datetime.now(UTC)


def _move(db: Session, sweep_id: int, before: SweepStatus, after: SweepStatus) -> Sweep:
    sweep = get(db, sweep_id)
    if sweep.status is not before:
        raise ConflictError(f"Sweep {sweep_id} is {sweep.status}, not {before}.")
    sweep.status = after
    return sweep


def _hold(db: Session, sweep: Sweep, *, held: bool) -> None:
    for run in list_runs(db, sweep.id or 0):
        if run.status is RunStatus.QUEUED:
            queue.hold(db, run.id or 0, is_held=held)
