"""How many steps fit into the time a run may take, measured on its own batches before step one.

Nothing of what is measured stays: no weight, gradient, counter or random state, so the run equals
one that was given the number of steps.
"""

import math
import time
from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass
from itertools import islice
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from studio.recipe.base import Recipe
from studio.training.checkpoints import trainer_state
from studio.training.checkpoints.resume import ResumableTrainerMixin

_COLLATED_BATCHES = 48
"""Batches whose sizes are compared; upstream puts the longest first, so a few are not enough."""
_SIZES = (0.5, 0.2, 0.5, 0.8)
"""The batches to time, by their place in order of size. The first one only warms up."""
_RESERVE = 0.06
"""Share of the remaining time for what is not measured: optimizer, logging, checkpoints, saving."""

Batch = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Seconds that the parts of a run take."""

    step: float
    validation: float
    """One validation on all validation rows."""
    answers: float
    """Sample answers to all prompts once."""


def measure_pace(trainer: ResumableTrainerMixin, answers: float) -> Pace:
    """Time a few batches, forward and backward."""
    states = deepcopy([trainer_state.get_state(part) for part in trainer.accumulators])
    devices = [trainer.args.device] if trainer.args.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), trainer.accelerator.autocast():
        trainer.model.train()
        batches = _by_size(trainer.get_train_dataloader())
        _warm_up, *seconds = [_time_batch(trainer, _pick(batches, size)) for size in _SIZES]
        evaluation = trainer.get_eval_dataloader()
        with torch.no_grad():
            validation = _time_batch(trainer, _pick(_by_size(evaluation), 0.5))
    trainer.model.zero_grad(set_to_none=True)
    for part, state in zip(trainer.accumulators, states, strict=True):
        trainer_state.restore_state(part, state)
    return Pace(
        step=fmean(seconds) * trainer.args.gradient_accumulation_steps,
        validation=validation * len(evaluation),
        answers=answers,
    )


def count_steps(recipe: Recipe, pace: Pace, seconds: float) -> int:
    """Return how many steps fit into the seconds that are left, at least one.

    Validations, sample answers and what follows the last step are part of these seconds.
    """
    interval = recipe.evaluation.eval_steps
    step = pace.step + (pace.validation / interval if interval >= 1 else 0.0)
    validations = 2 if interval >= 1 else 1 + math.ceil(1 / interval)
    rest = validations * pace.validation + (recipe.samples.between + 1) * pace.answers
    return max(1, math.floor((seconds * (1 - _RESERVE) - rest) / step))


def count_without_limit(trainer: ResumableTrainerMixin) -> int:
    """Return the steps that the epochs, or the recipe's own number of steps, ask for."""
    *_, steps = trainer.set_initial_training_values(trainer.args, trainer.get_train_dataloader())
    count: int = steps
    return count


def _by_size(loader: Iterable[Batch]) -> list[Batch]:
    return sorted(islice(loader, _COLLATED_BATCHES), key=lambda batch: batch["input_ids"].numel())


def _pick(batches: list[Batch], share: float) -> Batch:
    return dict(batches[math.floor(share * len(batches))])


def _time_batch(trainer: ResumableTrainerMixin, batch: Batch) -> float:
    started_at = time.perf_counter()
    loss: Tensor = trainer.compute_loss(trainer.model, trainer._prepare_inputs(batch))  # noqa: SLF001 -- no public name
    if loss.requires_grad:
        loss.backward()  # type: ignore[no-untyped-call] # upstream is untyped
    if loss.is_cuda:
        torch.cuda.synchronize(loss.device)
    return time.perf_counter() - started_at
