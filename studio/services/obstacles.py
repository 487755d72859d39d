"""Everything that keeps a recipe from starting: its model, precision, chat template and data."""

from sqlmodel import Session

from studio.methods import AnyRecipe
from studio.services import base_models, findings, refusals, spoken, stats, workers
from studio.services.refusals import Refusal
from studio.weights.facts import ModelFacts


def of(db: Session, recipe: AnyRecipe, facts: ModelFacts) -> list[Refusal]:
    """Return why a recipe cannot run, worst first; nothing if it can."""
    return [*refusals.refusals(recipe, facts, workers.machine(db)), *of_data(db, recipe)]


def of_data(db: Session, recipe: AnyRecipe) -> list[Refusal]:
    """Return why its model cannot be had, or cannot learn from its data.

    That goes by its method, model, data set and what it does to the rows, and by nothing else.
    """
    return [
        *base_models.refusals(db, recipe),
        *spoken.refusals(db, recipe),
        *findings.refusals(db, recipe),
        *stats.refusals(db, recipe),
    ]
