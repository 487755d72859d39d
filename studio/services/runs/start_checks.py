"""Everything that can prevent a recipe from starting: model, precision, chat template, data."""

from sqlmodel import Session

from studio.methods import AnyRecipe
from studio.services.datasets import chat_template_check, data_quality, token_stats
from studio.services.precision import incompatibilities
from studio.services.precision.incompatibilities import Refusal
from studio.services.runs import base_model_check
from studio.services.workers import workers
from studio.weights.model_facts import ModelFacts


def check(db: Session, recipe: AnyRecipe, facts: ModelFacts) -> list[Refusal]:
    """Return why a recipe cannot run, worst first; empty if it can."""
    return [
        *incompatibilities.check(recipe, facts, workers.training_hardware(db)),
        *check_model_and_data(db, recipe),
    ]


def check_model_and_data(db: Session, recipe: AnyRecipe) -> list[Refusal]:
    """Return why a recipe's model is unavailable or cannot be trained on its data.

    This depends only on the method, the model, the dataset and the data settings.

    """
    return [
        *base_model_check.check(db, recipe),
        *chat_template_check.check(db, recipe),
        *data_quality.check(db, recipe),
        *token_stats.check(db, recipe),
    ]
