"""The parent of an experiment: a run or another experiment, named like `run:12`."""

from dataclasses import dataclass

from sqlmodel import Session

from studio.errors import NotFoundError
from studio.methods import AnyRecipe
from studio.services import experiments
from studio.services.runs import runs


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeParent:
    """The run or experiment a recipe was copied from."""

    title: str
    """For example "run 12"."""
    name: str
    link: str
    recipe: AnyRecipe


def find(db: Session, source: str) -> RecipeParent:
    """Return the run or experiment that a source names.

    Raises:
        NotFoundError: it names neither, or something that was deleted.

    """
    kind, _colon, number = source.partition(":")
    if kind not in {"run", "experiment"} or not number.isdecimal():
        raise NotFoundError(f"There is no {source} to start from.", hint="Use the form run:12.")
    parent = (runs.get if kind == "run" else experiments.get)(db, int(number))
    return RecipeParent(
        title=f"run {parent.id}" if kind == "run" else f"experiment {parent.id}",
        name=parent.name,
        link=f"/{kind}s/{parent.id}",
        recipe=parent.recipe,
    )


def find_or_none(db: Session, source: str) -> RecipeParent | None:
    """Return what a source names, or None if it names nothing that exists."""
    try:
        return find(db, source)
    except NotFoundError:
        return None
