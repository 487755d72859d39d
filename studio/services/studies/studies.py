"""Precision studies: queue one recipe in several precisions and with several seeds."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlmodel import Session, col, select, update

from studio.db.tables import Experiment, Run, Study
from studio.errors import InvalidError, NotFoundError
from studio.methods import AnyRecipe
from studio.recipe.dotted_keys import merge
from studio.recipe.precision import PRECISIONS
from studio.services import experiments
from studio.services.compare import compare
from studio.services.runs import runs
from studio.services.studies.study_statistics import REFERENCE

MAX_RUNS = compare.MAX_RUNS
DEFAULT_SEEDS = 3
"""Enough to see how far seeds scatter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyPlan:
    """What a study runs."""

    modes: Sequence[str]
    seeds: int = DEFAULT_SEEDS
    """Number of seeds, counted from 0."""
    max_steps: int | None = None
    """None uses the recipe's length."""


def create(
    db: Session, experiment: Experiment, plan: StudyPlan, recipe: AnyRecipe | None = None
) -> Study:
    """Queue the runs of a study: each precision with each seed.

    The recipe defaults to the experiment's. All precisions of a seed come before the next seed, so
    that a comparison is possible early.

    Raises:
        ForbiddenError: The experiment belongs to another member.
        InvalidError: The reference is missing, there are too many runs, or a precision cannot
            run here.

    """
    modes, values = _validate_modes(plan), (recipe or experiment.recipe).model_dump()
    # Check everything before anything is written.
    for mode in modes:
        changed = merge(values, _recipe_changes(mode, 0, plan.max_steps))
        runs.check(db, runs.with_overrides(experiment.recipe, changed))
    study = Study(
        experiment_id=experiment.id or 0,
        name=experiment.name,
        modes=modes,
        seeds=list(range(plan.seeds)),
        max_steps=plan.max_steps,
    )
    db.add(study)
    db.flush()
    for seed in study.seeds:
        for mode in modes:
            changed = merge(values, _recipe_changes(mode, seed, plan.max_steps))
            run = runs.submit(db, experiment, changed)
            run.study_id, run.name = study.id, _run_name(study.name, mode, seed)
    return study


def explain_refusal(db: Session, recipe: AnyRecipe, mode: str) -> str:
    """Return why a recipe cannot run in a precision here; empty if it can."""
    try:
        runs.check(db, runs.with_overrides(recipe, {"precision": mode}))
    except InvalidError as error:
        return error.message
    return ""


def resolve_source(db: Session, name: str) -> tuple[Experiment, AnyRecipe]:
    """Return the experiment and recipe that `run:12` or `experiment:3` names.

    Raises:
        NotFoundError: There is none with this name.

    """
    kind, _colon, number = name.partition(":")
    if kind not in {"run", "experiment"} or not number.isdecimal():
        raise NotFoundError(
            f"{name} does not exist, so no study can start from it.", hint="Choose an experiment."
        )
    if kind == "run":
        run = runs.get(db, int(number))
        return experiments.get(db, run.experiment_id), run.recipe
    experiment = experiments.get(db, int(number))
    return experiment, experiment.recipe


def get(db: Session, study_id: int) -> Study:
    study = db.get(Study, study_id)
    if study is None:
        raise NotFoundError(f"Study {study_id} does not exist.", hint="It may have been deleted.")
    return study


def newest(
    db: Session, *, limit: int, before: int | None = None, experiment_id: int | None = None
) -> Sequence[Study]:
    query = select(Study).order_by(col(Study.id).desc()).limit(limit)
    if before is not None:
        query = query.where(col(Study.id) < before)
    if experiment_id is not None:
        query = query.where(Study.experiment_id == experiment_id)
    return db.exec(query).all()


def delete(db: Session, study_id: int) -> None:
    """Delete a study. Its runs stay in their experiment."""
    study = get(db, study_id)
    db.exec(update(Run).where(col(Run.study_id) == study_id).values(study_id=None))
    db.delete(study)


def list_runs(db: Session, study_id: int) -> Sequence[Run]:
    return db.exec(select(Run).where(Run.study_id == study_id).order_by(col(Run.id))).all()


def _validate_modes(plan: StudyPlan) -> list[str]:
    modes = list(dict.fromkeys(plan.modes))
    if unknown := [mode for mode in modes if mode not in PRECISIONS]:
        raise InvalidError(f"There is no precision named {unknown[0]}.", param="modes")
    if REFERENCE not in modes or len(modes) < 2:  # noqa: PLR2004 -- a comparison needs two
        raise InvalidError(
            f"A study needs {REFERENCE} and at least one other precision.",
            hint=f"The others are compared with {REFERENCE}.",
            param="modes",
        )
    if plan.seeds < 1 or plan.seeds * len(modes) > MAX_RUNS:
        raise InvalidError(
            f"A study can have 1 to {MAX_RUNS} runs; this would be "
            f"{len(modes)} precisions with {plan.seeds} seeds.",
            hint="Choose fewer precisions or seeds.",
            param="seeds",
        )
    return modes


def _recipe_changes(mode: str, seed: int, max_steps: int | None) -> dict[str, Any]:
    steps = {} if max_steps is None else {"max_steps": max_steps}
    return {
        "precision": mode,
        "optimisation": {"seed": seed, **steps},
        # The study measures how far a precision gets: no guard may stop or roll back its runs.
        "numerics": {"guard": "warn"},
    }


def _run_name(name: str, mode: str, seed: int) -> str:
    suffix = f" {mode} s{seed}"
    return name[: experiments.NAME_LIMIT - len(suffix)] + suffix
