"""Early stopping, and keeping the best model."""

from typing import Any

from transformers import EarlyStoppingCallback, TrainerCallback

from studio.metrics import MetricSpec
from studio.recipe.base import Recipe


def best_model_arguments(recipe: Recipe, objective: MetricSpec) -> dict[str, Any]:
    """Return the arguments that make the trainer keep its best model and save nothing else."""
    if not recipe.keeps_best_model:
        return {"save_strategy": "no"}
    return {
        "save_strategy": "best",
        "load_best_model_at_end": True,
        "metric_for_best_model": objective.key,
        "greater_is_better": objective.better == "higher",
    }


class ResumableEarlyStopping(EarlyStoppingCallback):  # type: ignore[misc] # upstream is untyped
    """Stops after `patience` validations without a better result; the count survives a resume."""

    SAVED_AS = "Patience"
    STATE_ATTRIBUTES = ("early_stopping_patience_counter",)


def callbacks(recipe: Recipe) -> list[TrainerCallback]:
    if recipe.early_stopping.early_stopping_patience is None:
        return []
    return [ResumableEarlyStopping(**recipe.early_stopping.model_dump())]
