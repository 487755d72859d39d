"""Runs: submit, find, delete."""

import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from sqlalchemy import ColumnElement
from sqlalchemy.orm import aliased, defer
from sqlmodel import Session, col, func, select
from sqlmodel import delete as remove

from studio.db.owners import current_owner_id
from studio.db.states import LIVE, RunStatus
from studio.db.summaries import MetricSummary
from studio.db.tables import Attempt, Experiment, Metric, Model, Run, RunEvent, Sample
from studio.db.tasks import Export
from studio.errors import ConflictError, InvalidError, NotFoundError
from studio.hardware import Hardware
from studio.methods import RECIPE_ADAPTER, AnyRecipe
from studio.methods.rollouts import reward_of
from studio.recipe.base import Conflict, find_conflict, unusable_values
from studio.recipe.dotted_keys import merge
from studio.recipe.precision import AUTO
from studio.schemas.validation_errors import field_errors
from studio.services import experiments
from studio.services.accounts import owners
from studio.services.datasets import datasets, versions
from studio.services.estimates import estimates
from studio.services.models import endpoint_uses, reward_models
from studio.services.precision import recommendation
from studio.services.precision.incompatibilities import Refusal
from studio.services.runs import states
from studio.services.workers import workers

ALARM_KIND = "alarm"
"""The kind of an event that reports numerical issues."""

RESTARTED_KIND = "restarted"
"""The kind of an event that records a restart; earlier alarms no longer count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFilter:
    """Which runs to list."""

    search: str = ""
    status: RunStatus | None = None
    experiment_id: int | None = None
    archived: bool = False
    """Whether to include archived runs. Runs in the trash are never listed."""


def submit(db: Session, experiment: Experiment, overrides: Mapping[str, Any] | None = None) -> Run:
    """Queue a run of an experiment, with some values of its recipe replaced.

    Raises:
        ForbiddenError: the experiment belongs to another member.
        InvalidError: the recipe cannot run here: unknown model or dataset, incompatible
            precision, conflicting settings.

    """
    owners.require(db, "experiments", [_id(experiment)])
    values = overrides or {}
    if experiment.precision_reason and "precision" not in values:
        # Another model or adapter may have a different recommendation.
        values = {**values, "precision": AUTO}
    resolved = recommendation.resolve_precision(db, with_overrides(experiment.recipe, values))
    recipe = resolved.recipe
    check(db, recipe)
    run = Run(
        experiment_id=_id(experiment),
        name=experiment.name,
        recipe=recipe,
        precision_reason=resolved.reason,
        estimate=estimates.estimate_record(db, recipe),
        dataset_version_id=versions.require(db, recipe.dataset).id,
        owner_id=current_owner_id() or experiment.owner_id,
    )
    db.add(run)
    db.flush()
    states.record_event(db, run, "queued")
    return run


def resubmit(
    db: Session, run_id: int, change: Mapping[str, Any], *, strict: bool | None = False
) -> Run:
    """Queue the recipe of a run again, with some of its values changed.

    Unless `strict`, values may be text, as a form sends them.

    Raises:
        InvalidError: as in `submit`.

    """
    run = get(db, run_id)
    original = db.get_one(Experiment, run.experiment_id)
    recipe = with_overrides(run.recipe, change, strict=strict)
    experiment = experiments.own_or_copy(db, original, parent=f"run:{run_id}")
    new_run = submit(db, experiment, recipe.model_dump())
    new_run.name = run.name
    if "precision" not in change:
        new_run.precision_reason = run.precision_reason
    return new_run


def recheck_precision(db: Session, run: Run, hardware: Hardware) -> None:
    """Choose an automatically chosen precision again, on the machine about to train the run.

    It may have been chosen while no worker was connected. A run that resumes keeps its precision,
    and so do the runs of a sweep, because they are compared with each other.

    """
    if not run.precision_reason or run.resumes or run.attempt > 1 or run.sweep_id is not None:
        return
    facts = recommendation.load_model_facts(db, run.recipe.base_model)
    recommended = recommendation.recommend(run.recipe, facts, hardware)
    run.precision_reason = recommended.sentence
    if recommended.mode.name != run.recipe.precision:
        run.recipe = with_overrides(run.recipe, {"precision": recommended.mode.name})
        run.estimate = estimates.estimate_record(db, run.recipe)
        states.record_event(db, run, "precision", {"precision": recommended.mode.name})


def check(db: Session, recipe: AnyRecipe) -> None:
    """Reject a recipe that cannot run, before it waits in the queue in vain.

    Raises:
        InvalidError: the recipe cannot run here.

    """
    if refused := make_checker(db)(recipe):
        raise refused


def make_checker(db: Session) -> Callable[[AnyRecipe], InvalidError | None]:
    """Return a function that returns why a recipe cannot run, or None if it can.

    It reflects one moment and queries the database only once for what many recipes share.

    """
    from studio.services.runs import start_checks  # noqa: PLC0415 -- heavy import

    hardware = workers.whole_hardware(db)
    facts = cache(partial(recommendation.load_model_facts, db))
    require_dataset = cache(partial(datasets.require, db))
    shared_problems: dict[object, Sequence[Refusal]] = {}

    def problems(requested: AnyRecipe) -> Iterator[Conflict | Refusal]:
        recipe, model_facts = (
            recommendation.resolve_precision(db, requested).recipe,
            facts(requested.base_model),
        )
        require_dataset(recipe.dataset)
        if conflict := find_conflict(recipe):
            yield conflict
        yield from unusable_values(recipe)
        yield from start_checks.list_conflicts(recipe, model_facts, hardware)
        models = (recipe.base_model, recipe.teacher, recipe.adapter.continue_from)
        reads = (recipe.dataset, recipe.data, recipe.answer_tokens > 0, reward_of(recipe))
        key = (recipe.method, *models, *reads)
        if key not in shared_problems:
            shared_problems[key] = start_checks.check_model_and_data(db, recipe)
        yield from shared_problems[key]

    def find_error(recipe: AnyRecipe) -> InvalidError | None:
        try:
            worst = next(problems(recipe), None)
        except InvalidError as error:
            return error
        if worst is None:
            return None
        return InvalidError(worst.message, hint=worst.hint, param=worst.param)

    return find_error


def with_overrides(
    recipe: AnyRecipe, overrides: Mapping[str, Any], *, strict: bool | None = None
) -> AnyRecipe:
    """Return the recipe with some values replaced; unless `strict`, text values are parsed.

    Raises:
        InvalidError: a value is out of range, or a field does not exist.

    """
    return build_recipe(merge(recipe.model_dump(), overrides), strict=strict)


def build_recipe(values: Mapping[str, Any], *, strict: bool | None = None) -> AnyRecipe:
    """Return the recipe with some values, and defaults for the others.

    Raises:
        InvalidError: a value is missing or out of range, or a field does not exist.

    """
    try:
        return RECIPE_ADAPTER.validate_python(values, strict=strict)
    except ValidationError as error:
        first = field_errors(error.errors(), AnyRecipe)[0]
        raise InvalidError(str(first), param=first.param) from error


def get(db: Session, run_id: int) -> Run:
    run = db.get(Run, run_id)
    if run is None:
        raise not_found(run_id)
    return run


def not_found(run_id: int) -> NotFoundError:
    return NotFoundError(f"Run {run_id} does not exist.", hint="It may have been deleted.")


def existing_ids(db: Session, ids: Sequence[int]) -> list[int]:
    """Return those ids that still belong to a run, in the given order."""
    existing = set(db.exec(select(Run.id).where(col(Run.id).in_(ids))))
    return [run_id for run_id in ids if run_id in existing]


def newest(
    db: Session, run_filter: RunFilter, *, limit: int, before: int | None = None
) -> Sequence[Run]:
    """Return matching runs, newest first; with `before`, only runs older than that one."""
    query = select(Run).order_by(col(Run.id).desc()).limit(limit)
    if run_filter.search:
        # Names are searched in an index; only matching rows, which are wide, are read.
        query = query.where(col(Run.id).in_(select(Run.id).where(*_filter_conditions(run_filter))))
    else:
        query = query.where(*_filter_conditions(run_filter))
    if before is not None:
        query = query.where(col(Run.id) < before)
    return db.exec(query).all()


def count(db: Session, run_filter: RunFilter) -> int:
    return db.exec(select(func.count(col(Run.id))).where(*_filter_conditions(run_filter))).one()


def list_for_experiment(db: Session, experiment_id: int) -> Sequence[Run]:
    return newest(db, RunFilter(experiment_id=experiment_id, archived=True), limit=1000)


def list_live(db: Session, *, limit: int | None = None) -> Sequence[Run]:
    """Return the runs that have a training process, oldest first."""
    query = select(Run).where(col(Run.status).in_(LIVE)).order_by(col(Run.id))
    return db.exec(query.limit(limit)).all()


_WIDE: tuple[Any, ...] = (Run.recipe, Run.resolved, Run.estimate)
_WITHOUT_WIDE = tuple(map(defer, _WIDE))
"""Few lists need these columns, which are most of a row; they are read on access."""


def list_live_progress(db: Session) -> Sequence[Run]:
    """Return what `list_live` does, without reading recipes, formats and estimates."""
    query = select(Run).where(col(Run.status).in_(LIVE)).order_by(col(Run.id))
    return db.exec(query.options(*_WITHOUT_WIDE)).all()


def count_live_slots(db: Session) -> int:
    """Return how many slots the live runs use."""
    used = select(func.coalesce(func.sum(Run.slots), 0)).where(col(Run.status).in_(LIVE))
    return int(db.exec(used).one())


@dataclass(frozen=True, slots=True)
class UnfinishedRuns:
    running: int
    waiting: int


def count_unfinished(db: Session) -> UnfinishedRuns:
    """Count the runs that have a training process, and those in the queue."""
    statuses = (*LIVE, RunStatus.QUEUED)
    query = select(Run.status, func.count()).where(col(Run.status).in_(statuses))
    numbers = dict(db.exec(query.group_by(col(Run.status))).all())
    return UnfinishedRuns(
        sum(numbers.get(status, 0) for status in LIVE), numbers.get(RunStatus.QUEUED, 0)
    )


def list_with_live(db: Session, run_ids: Collection[int]) -> Sequence[Run]:
    """Return the live runs and the given ones, newest first; deleted ids are ignored.

    Recipes, formats and estimates are read on access.
    """
    query = select(Run).where(col(Run.status).in_(LIVE) | col(Run.id).in_(run_ids))
    return db.exec(query.options(*_WITHOUT_WIDE).order_by(col(Run.id).desc())).all()


def delete(db: Session, run_id: int, folder: Path) -> None:
    """Delete a run that has ended, with its metrics and files.

    Raises:
        ConflictError: the run is queued or live, or is needed by such a run.

    """
    run = get(db, run_id)
    if run.status is RunStatus.QUEUED or run.status.is_live:
        raise ConflictError(f"Run {run_id} is {run.status}.", hint="Cancel it first.")
    reward_models.require_unused(db, run)
    endpoint_uses.require_run_unused(db, run_id)
    for table in (Metric, MetricSummary, Sample, RunEvent, Model, Export, Attempt):
        db.exec(remove(table).where(col(table.run_id) == run_id))
    db.delete(run)
    shutil.rmtree(folder / str(run_id), ignore_errors=True)


def list_events(
    db: Session, run_id: int, *, after: int = 0, limit: int = 200
) -> Sequence[RunEvent]:
    query = select(RunEvent).where(RunEvent.run_id == run_id, col(RunEvent.id) > after)
    return db.exec(query.order_by(col(RunEvent.id)).limit(limit)).all()


def list_newest_events(db: Session, run_id: int, *, limit: int) -> Sequence[RunEvent]:
    query = select(RunEvent).where(RunEvent.run_id == run_id)
    return db.exec(query.order_by(col(RunEvent.id).desc()).limit(limit)).all()


def list_alarms(db: Session, run_id: int) -> Sequence[RunEvent]:
    """Return the run's alarms, oldest first."""
    query = select(RunEvent).where(RunEvent.run_id == run_id, *alarm_conditions())
    return db.exec(query.order_by(col(RunEvent.id))).all()


def alarm_conditions() -> tuple[ColumnElement[bool], ...]:
    """Return the conditions that select alarms among events: those since the last restart."""
    restart = aliased(RunEvent)
    newest = select(func.max(restart.id)).where(
        restart.run_id == RunEvent.run_id, restart.kind == RESTARTED_KIND
    )
    since = func.coalesce(newest.correlate(RunEvent).scalar_subquery(), 0)
    return col(RunEvent.kind) == ALARM_KIND, col(RunEvent.id) > since


def _filter_conditions(run_filter: RunFilter) -> Iterator[ColumnElement[bool]]:
    yield col(Run.deleted_at).is_(None)
    if not run_filter.archived:
        yield col(Run.archived_at).is_(None)
    if run_filter.search:
        yield col(Run.name).icontains(run_filter.search, autoescape=True)
    if run_filter.status is not None:
        yield col(Run.status) == run_filter.status
    if run_filter.experiment_id is not None:
        yield col(Run.experiment_id) == run_filter.experiment_id


def _id(row: Run | Experiment) -> int:
    assert row.id is not None  # noqa: S101 -- a row that was never flushed is a bug of ours
    return row.id
