"""The columns that graders can read of a dataset's rows, and recipes whose graders read others."""

from pathlib import Path

from sqlmodel import Session

from studio.db.tables import DatasetVersion
from studio.errors import InvalidError
from studio.graders.item_columns import list_item_columns
from studio.graders.schema import Grader
from studio.graders.templates import list_names
from studio.intake.mapping import Mapping
from studio.intake.row_formats.tasks import REFERENCE
from studio.methods import METHODS, AnyRecipe
from studio.methods.rollouts import reward_of
from studio.services.datasets import versions
from studio.services.precision.incompatibilities import Refusal

_LOOKED_AT = 8
"""How many rows are read."""


def list_known(version: DatasetVersion, folder: Path | None) -> list[str]:
    """Return the columns that rows of a version have for graders, besides the prompt.

    Turns of tasks may end with an answer: the rows tell, in `folder`, which has the datasets.
    """
    mapping = Mapping.model_validate(version.mapping)
    columns = list(mapping.roles.get("item", ())) if version.kind == "task" else []
    if version.kind == "task" and not ("messages" in mapping.roles and _answers(version, folder)):
        return columns
    return columns + [REFERENCE] * (REFERENCE not in columns)


def _answers(version: DatasetVersion, folder: Path | None) -> bool:
    """Whether rows have an answer in their turns, as far as is known."""
    try:
        rows = versions.load_rows(folder, version, limit=_LOOKED_AT).rows if folder else []
    except OSError:
        rows = []
    return not rows or any(REFERENCE in one.row.get("item", {}) for one in rows)


def list_missing(version: DatasetVersion, folder: Path | None, grader: Grader) -> list[str]:
    """Return the columns that a grader reads, and the rows of a version do not have."""
    known = {*list_known(version, folder), "messages"}
    return [name for name in list_item_columns(grader) if name not in known]


def check(db: Session, recipe: AnyRecipe, folder: Path | None) -> list[Refusal]:
    """Return why the graders of a recipe cannot score answers to its rows.

    `folder` has the datasets; None if their rows cannot be read here.
    """
    reward = reward_of(recipe)
    if reward is None:
        return []
    try:
        version = versions.require(db, recipe.dataset)
    except InvalidError:  # The dataset's own field shows this error.
        return []
    if version.kind not in METHODS[recipe.method].trains_on:
        return []
    graders = {
        "The grader": ("reward.grader", reward.parse_grader()),
        "The held-out grader": ("reward.held_out_grader", reward.parse_held_out_grader()),
    }
    return [
        Refusal(
            message=f"{subject} reads item.{missing[0][:80]}, and the rows have no such column: "
            f"they have {list_names(list_known(version, folder)) or 'none'}.",
            hint="Change the grader, or choose another dataset.",
            param=param,
        )
        for subject, (param, grader) in graders.items()
        if grader and (missing := list_missing(version, folder, grader))
    ]
