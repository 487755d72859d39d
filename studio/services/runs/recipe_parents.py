"""What an experiment was made from: a run or another experiment, as `run:12` names them."""

from dataclasses import dataclass

from sqlmodel import Session

from studio.errors import NotFoundError
from studio.methods import AnyRecipe
from studio.services import experiments
from studio.services.runs import runs


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeParent:
    """Where a recipe comes from."""

    title: str
    """In words: run 12."""
    name: str
    link: str
    recipe: AnyRecipe


def find(db: Session, source: str) -> RecipeParent:
    """Return the run or the experiment that a source names.

    Raises:
        NotFoundError: it names neither, or one that is gone.

    """
    kind, _colon, number = source.partition(":")
    if kind not in {"run", "experiment"} or not number.isdecimal():
        raise NotFoundError(f"There is no {source} to start from.", hint="Write run:12.")
    found = (runs.get if kind == "run" else experiments.get)(db, int(number))
    return RecipeParent(
        title=f"{kind} {found.id}",
        name=found.name,
        link=f"/{kind}s/{found.id}",
        recipe=found.recipe,
    )


def find_or_none(db: Session, source: str) -> RecipeParent | None:
    """Return what a source names, or None where that is nothing, or gone."""
    try:
        return find(db, source)
    except NotFoundError:
        return None
