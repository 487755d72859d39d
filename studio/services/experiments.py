"""Experiments: named recipes to run, clone and compare."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlmodel import Session, col, func, select

from studio.db.tables import Experiment, Run
from studio.errors import ConflictError, InvalidError, NotFoundError
from studio.methods import AnyRecipe
from studio.services.accounts import owners
from studio.services.precision import recommendation

NAME_LIMIT = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentChanges:
    """Changes to an experiment; None leaves a field unchanged."""

    name: str | None = None
    notes: str | None = None
    tags: list[str] | None = None


def create(
    db: Session, name: str, recipe: AnyRecipe, *, notes: str = "", parent: str = ""
) -> Experiment:
    """Save a recipe under a name. `parent` is what it was copied from, such as `run:12`.

    An automatic precision is resolved now, so that the saved recipe names one.

    Raises:
        InvalidError: the name is not valid, or the model does not exist.

    """
    resolved = recommendation.resolve_precision(db, recipe)
    experiment = Experiment(
        name=clean_name(name),
        recipe=resolved.recipe,
        precision_reason=resolved.reason,
        notes=notes,
        parent=parent,
    )
    db.add(experiment)
    db.flush()
    return experiment


def own_or_copy(db: Session, experiment: Experiment, *, parent: str) -> Experiment:
    """Return an experiment that the current user may add runs to: this one, or their own copy.

    Only an owner may add runs, because a run prevents its experiment from being deleted.

    """
    if owners.may_change(experiment.owner_id):
        return experiment
    return create(db, experiment.name, experiment.recipe, notes=experiment.notes, parent=parent)


def get(db: Session, experiment_id: int) -> Experiment:
    experiment = db.get(Experiment, experiment_id)
    if experiment is None:
        raise NotFoundError(
            f"Experiment {experiment_id} does not exist.", hint="It may have been deleted."
        )
    return experiment


def newest(db: Session, *, limit: int, before: int | None = None) -> Sequence[Experiment]:
    query = select(Experiment).order_by(col(Experiment.id).desc()).limit(limit)
    if before is not None:
        query = query.where(col(Experiment.id) < before)
    return db.exec(query).all()


def update(db: Session, experiment_id: int, changes: ExperimentChanges) -> Experiment:
    experiment = get(db, experiment_id)
    if changes.name is not None:
        experiment.name = clean_name(changes.name)
    if changes.notes is not None:
        experiment.notes = changes.notes
    if changes.tags is not None:
        experiment.tags = changes.tags
    return experiment


def delete(db: Session, experiment_id: int) -> None:
    """Delete an experiment that has no runs.

    Raises:
        ConflictError: the experiment has runs, which must be deleted first.

    """
    experiment = get(db, experiment_id)
    runs = db.exec(
        select(func.count()).select_from(Run).where(Run.experiment_id == experiment_id)
    ).one()
    if runs:
        message = f"Experiment {experiment_id} has {runs} runs."
        if runs == 1:
            message = f"Experiment {experiment_id} has a run."
        raise ConflictError(message, hint="Delete its runs first.")
    db.delete(experiment)


def clean_name(name: str) -> str:
    """Return the name as it is stored.

    Raises:
        InvalidError: the name is empty, too long, or has invisible characters.

    """
    name = name.strip()
    if not name:
        raise InvalidError(
            "Enter a name.", hint="Describe in a few words what you are trying.", param="name"
        )
    if len(name) > NAME_LIMIT or not name.isprintable():
        raise InvalidError(
            f"Names can have up to {NAME_LIMIT} visible characters on one line.", param="name"
        )
    return name
