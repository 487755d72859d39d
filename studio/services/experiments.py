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
    """What may be changed in an experiment; None leaves a field as it is."""

    name: str | None = None
    notes: str | None = None
    tags: list[str] | None = None


def create(
    db: Session, name: str, recipe: AnyRecipe, *, notes: str = "", parent: str = ""
) -> Experiment:
    """Save a recipe under a name. `parent` is what it was made from, as `run:12`.

    A precision left to the studio is chosen now, so that the recipe saved names a mode.

    Raises:
        InvalidError: the name is no name, or there is no such model to recommend a precision for.

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
    """Return an experiment that the acting person may add runs to: this one, or a copy of theirs.

    A run keeps its experiment from being deleted, so only an owner may add one.

    """
    if owners.may_change(experiment.owner_id):
        return experiment
    return create(db, experiment.name, experiment.recipe, notes=experiment.notes, parent=parent)


def get(db: Session, experiment_id: int) -> Experiment:
    experiment = db.get(Experiment, experiment_id)
    if experiment is None:
        raise NotFoundError(
            f"There is no experiment {experiment_id}.", hint="It may have been deleted."
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
        ConflictError: runs belong to it; they must go first.

    """
    experiment = get(db, experiment_id)
    runs = db.exec(
        select(func.count()).select_from(Run).where(Run.experiment_id == experiment_id)
    ).one()
    if runs:
        raise ConflictError(
            f"Experiment {experiment_id} has {runs} runs.", hint="Delete its runs first."
        )
    db.delete(experiment)


def clean_name(name: str) -> str:
    """Return the name as it is kept.

    Raises:
        InvalidError: empty, too long, or with characters that cannot be seen.

    """
    name = name.strip()
    if not name:
        raise InvalidError(
            "A name is needed.", hint="Say in a few words what is tried.", param="name"
        )
    if len(name) > NAME_LIMIT or not name.isprintable():
        raise InvalidError(
            f"A name has at most {NAME_LIMIT} visible characters on one line.", param="name"
        )
    return name
