"""Everything that keeps a recipe from starting: its model, precision, chat template and data."""

from sqlmodel import Session

from studio.methods import AnyRecipe
from studio.services.datasets import chat_template_check, data_quality, token_stats
from studio.services.precision import incompatibilities
from studio.services.precision.incompatibilities import Refusal
from studio.services.runs import base_model_check
from studio.services.workers import workers
from studio.weights.model_facts import ModelFacts


def of(db: Session, recipe: AnyRecipe, facts: ModelFacts) -> list[Refusal]:
    """Return why a recipe cannot run, worst first; nothing if it can."""
    return [*incompatibilities.refusals(recipe, facts, workers.machine(db)), *of_data(db, recipe)]


def of_data(db: Session, recipe: AnyRecipe) -> list[Refusal]:
    """Return why its model cannot be had, or cannot learn from its data.

    That goes by its method, model, data set and what it does to the rows, and by nothing else.
    """
    return [
        *base_model_check.refusals(db, recipe),
        *chat_template_check.refusals(db, recipe),
        *data_quality.refusals(db, recipe),
        *token_stats.refusals(db, recipe),
    ]
