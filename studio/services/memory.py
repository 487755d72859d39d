"""What a run will hold at most, by part, worked out before it starts.

A step is fullest either when its backward pass begins, holding all that the forward pass kept, or
when the optimizer moves the weights, holding every gradient:

    backward    weights + optimizer + copies + activations + scores [+ gradients, if added up]
    update      weights + optimizer + gradients + scratch
"""

from dataclasses import dataclass, replace
from typing import Literal

from sqlmodel import Session

from studio.db.tables import Run
from studio.errors import InvalidError
from studio.hardware import detect
from studio.methods import AnyRecipe
from studio.recipe.adapters import Lora
from studio.recipe.precision import PRECISIONS
from studio.services import advice, plans
from studio.services.kept import FAMILIES, Load, Step
from studio.services.plans import Sizes
from studio.weights.facts import ModelFacts

Moment = Literal["backward", "update"]

RUNTIME = 30_000_000
"""Bytes: what a trainer takes on a processor beside its tensors, measured on a model of none."""

_TILE_ROWS, _TILE_COLUMNS = 4096, 4096
_WIDE_TILE_COLUMNS = 32768
"""How many answer tokens are scored at once, and against how many words: on a GPU more."""
_TILE_WORK = 29
"""Bytes for each number of a tile while its gradient is worked out, its own left aside."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Bytes by part at the fullest moment of a step."""

    moment: Moment
    weights: int
    adapter: int
    optimizer: int
    compensation: int
    gradients: int
    copies: int
    activations: int
    """What the layers keep for the backward pass."""
    scores: int
    """What it takes to score the answers against the vocabulary."""
    scratch: int
    """What an update needs beside it."""
    runtime: int
    length: int
    """Tokens of the longest example it was worked out for."""

    @property
    def parts(self) -> dict[str, int]:
        """Return the parts that hold something, the largest first."""
        named = {
            name: getattr(self, name)
            for name in self.__slots__
            if name not in {"moment", "length"} and getattr(self, name)
        }
        return dict(sorted(named.items(), key=lambda part: -part[1]))

    @property
    def total(self) -> int:
        return sum(self.parts.values())


def of_run(db: Session, run: Run) -> Estimate | None:
    """Work out what a run should hold, by the examples it has found once it has read them."""
    try:
        facts = advice.facts_of(db, run.recipe.base_model)
    except InvalidError:
        # The model has gone since; the run may have ended long ago.
        return None
    told = run.resolved
    load = load_of(run.recipe, told.get("longest_example"), told.get("longest_answer"))
    on_gpu = told.get("device", detect().device) != "cpu"
    return estimate(run.recipe, facts, load, on_gpu=on_gpu)


def measured(run: Run) -> float | None:
    """Return the peak that an estimate can be held against: libraries are not among it."""
    if run.resolved.get("peak_memory", "whole") == "whole":
        return None
    return run.metrics.get("peak_memory_bytes")


def load_of(recipe: AnyRecipe, longest: int | None = None, answer: int | None = None) -> Load:
    """Return what a batch may hold; of data not looked at yet, as much as the recipe allows."""
    length = min(longest or recipe.data.max_length, recipe.data.max_length)
    return Load(recipe.optimisation.per_device_train_batch_size, length, answer or length)


def estimate(recipe: AnyRecipe, facts: ModelFacts, load: Load, *, on_gpu: bool) -> Estimate | None:
    """Work out what a run will hold at most; None where that is not known.

    On a GPU this is what torch allocates: the driver's own half gigabyte is not among it.
    """
    mode, shape = PRECISIONS[recipe.precision], facts.shape
    # What software rounds, scales or widens for a product leaves copies nobody has counted.
    is_rounded = mode.matmul == "bfloat16" and mode.compute == "float32"
    is_counted = not (is_rounded or mode.is_float8 or recipe.adapter.quantised)
    sizes = plans.plan(recipe, facts).sizes
    if sizes is None or shape is None or facts.family not in FAMILIES:
        return None
    # An adapter's float32 among 16-bit products, with no autocast between them, is refused.
    if not is_counted or (isinstance(recipe.adapter, Lora) and mode.weights != "float32"):
        return None
    step = Step(recipe, facts, shape, load, on_gpu)
    moments = [_backward(step, sizes), *_layers_again(step, sizes), _update(step, sizes)]
    return max(moments, key=lambda one: one.total)


def _scores(step: Step) -> int:
    """Return what scoring the answers takes, when their gradient is worked out tile by tile."""
    rows = step.load.batch * step.load.answers
    columns = _WIDE_TILE_COLUMNS if step.on_gpu else _TILE_COLUMNS
    tile = min(rows, _TILE_ROWS) * min(step.shape.vocabulary, columns)
    work = tile * (step.computed + (0 if step.on_gpu else _TILE_WORK))
    answers = rows * step.shape.hidden * (step.held + step.computed + 4)
    # The output's own gradient is added up in float32, then written as wide as the weights.
    return work + answers + (0 if step.is_adapter else 4 * step.table)


def _standing(step: Step, sizes: Sizes) -> Estimate:
    """Return what is there at every moment."""
    return Estimate(
        moment="backward",
        weights=sizes.weights,
        adapter=sizes.adapter,
        optimizer=sizes.optimizer,
        compensation=sizes.compensation,
        gradients=0,
        copies=0,
        activations=0,
        scores=0,
        scratch=0,
        runtime=0 if step.on_gpu else RUNTIME,
        length=step.load.length,
    )


def _backward(step: Step, sizes: Sizes) -> Estimate:
    """Say what is held when the backward pass begins, with the scores at hand."""
    adds_up = step.recipe.optimisation.gradient_accumulation_steps > 1
    layers = step.inputs if step.is_checkpointed else step.shape.layers * step.layer
    return replace(
        _standing(step, sizes),
        gradients=sizes.gradients if adds_up else 0,
        copies=0 if step.is_checkpointed else sizes.copies,
        activations=layers + step.tail,
        scores=_scores(step),
    )


def _layers_again(step: Step, sizes: Sizes) -> list[Estimate]:
    """Say what is held when checkpointing computes the first layer again, all others done."""
    if not step.is_checkpointed:
        return []
    again = replace(
        _standing(step, sizes),
        gradients=sizes.gradients,
        copies=sizes.copies // step.shape.layers,
        activations=step.layer + step.load.tokens * step.shape.hidden * step.held,
    )
    return [again]


def _update(step: Step, sizes: Sizes) -> Estimate:
    """Say what is held when the optimizer moves the largest of the weights."""
    return replace(
        _standing(step, sizes),
        moment="update",
        gradients=sizes.gradients,
        scratch=0 if step.is_adapter else step.table * _scratch(step.recipe),
    )


def _scratch(recipe: AnyRecipe) -> int:
    """Return the bytes that an optimizer needs of its own for each number of a weight."""
    if PRECISIONS[recipe.precision].rounding is not None:
        return _ROUNDING_SCRATCH
    return _SCRATCH[recipe.optimisation.optim]


_SCRATCH = {"adamw_torch_fused": 0, "adamw_torch": 8, "adafactor": 12, "sgd": 0}
_ROUNDING_SCRATCH = 24
"""Ours works in float32: gradient, averages, weight and change, one weight at a time."""
