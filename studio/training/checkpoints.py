"""Checkpoints: none, unless a run must find its way back to its best weights."""

from typing import Any

from transformers import EarlyStoppingCallback, TrainerCallback

from studio.recipe.data import EarlyStopping


def strategy(early: EarlyStopping) -> dict[str, Any]:
    """Return the trainer's arguments: the best weights kept with early stopping, else nothing."""
    if early.early_stopping_patience is None:
        return {"save_strategy": "no"}
    return {
        "save_strategy": "best",
        "save_only_model": True,
        "save_total_limit": 1,
        "load_best_model_at_end": True,
        "metric_for_best_model": "eval_loss",
    }


def callbacks(early: EarlyStopping) -> list[TrainerCallback]:
    if early.early_stopping_patience is None:
        return []
    return [EarlyStoppingCallback(**early.model_dump())]
