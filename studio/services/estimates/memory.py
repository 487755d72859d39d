"""What a run will hold at most, by part, worked out before it starts.

A step is fullest either when its backward pass begins, holding all that the forward pass kept, or
when the optimizer moves the weights, holding every gradient:

    backward    weights + optimizer + copies + activations + scores [+ gradients, if added up]
    update      weights + optimizer + gradients + scratch

On a processor the system's allocator loses a share of what a step takes and frees.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from sqlmodel import Session

from studio.db.tables import Run
from studio.errors import InvalidError
from studio.hardware import detect
from studio.methods import AnyRecipe
from studio.recipe.adapters import Lora
from studio.recipe.precision import PRECISIONS
from studio.services.estimates.activation_memory import BatchShape, TrainingStep
from studio.services.precision import number_formats, recommendation
from studio.services.precision.number_formats import DTYPE_BYTES, MemorySizes
from studio.weights import model_shape
from studio.weights.decoder_layers import FAMILY_LAYERS
from studio.weights.model_facts import ModelFacts

Moment = Literal["backward", "update"]

RUNTIME_BYTES = 27_000_000
"""Bytes: what a trainer takes on a processor beside its tensors, measured on a model of none."""
KERNEL_BYTES, _SHAPES = 8_000_000, 7
"""What oneDNN's products of 16 bits take for each length of a batch, and for how many lengths the
caches keep them: measured on a model of none, with an adapter or without. A processor that emulates
bfloat16 has none of them: six runs there held 14 to 32 MB less than with them."""

_OVERHEAD = {
    # Adapter, checkpointed: products in float32, in 16 bits
    (False, False): (0.2, 0.2),
    (False, True): (0.3, 0.3),
    (True, False): (0.42, 0.2),
    (True, True): (0.75, 0.55),
}
"""The share of what a step takes and frees that the system's allocator loses between blocks, in a
process set up by `studio.processes.allocator`: fitted to 35 runs of 2 to 34 million weights.

It is lost to alignment: for an aligned block glibc looks for a free place that is larger by more
than the alignment, and passes over one that fits. Twenty blocks of 2.4 MB, freed one by one and
asked for again, took half as much again (glibc 2.36). Gradients of weights fill such places; an
adapter has hardly any.
"""
_VALIDATION_OVERHEAD = 0.1
"""The same of validation: two runs whose validation held more than training lost 0 and 0.11."""

_ROW_BYTES, _TOKEN_BYTES = 4000, 70
"""What a row that was read holds, and each of its tokens; measured on 300 to 10,000 rows."""

_COMPARABLE = frozenset({"allocated", "resident"})
"""Ways of measuring a peak that count what an estimate counts: no libraries, and all weights."""

_TILE_ROWS, _TILE_COLUMNS = 4096, 4096
_WIDE_TILE_COLUMNS = 32768
"""How many answer tokens are scored at once, and against how many words: on a GPU more."""
_TILE_WORK = 29
"""Bytes for each number of a tile while its gradient is worked out, its own left aside."""

_FORWARD_WORK = 17
"""The same while it is only scored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBreakdown:
    """Bytes by part at the fullest moment of a step."""

    moment: Moment
    weights: int
    adapter: int
    optimizer: int
    compensation: int
    gradients: int = 0
    copies: int = 0
    activations: int = 0
    """What the layers keep for the backward pass."""
    scores: int = 0
    """What it takes to score the answers against the vocabulary."""
    scratch: int = 0
    """What an update needs beside it."""
    holes: int = 0
    """What is free between blocks, and too small for the next: allocator overhead."""
    examples: int
    """The rows, read and tokenised."""
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


def estimate_for_run(db: Session, run: Run) -> MemoryBreakdown | None:
    """Work out what a run should hold, by the examples it has found once it has read them."""
    try:
        facts = recommendation.load_model_facts(db, run.recipe.base_model)
    except InvalidError:
        # The model has gone since; the run may have ended long ago.
        return None
    return estimate_from_resolved(run.recipe, facts, run.resolved)


def estimate_from_resolved(
    recipe: AnyRecipe, facts: ModelFacts, told: Mapping[str, Any]
) -> MemoryBreakdown | None:
    """Work out what a run should hold, by what it has told of its data."""
    on_gpu = told.get("device", detect().device) != "cpu"
    return estimate(recipe, facts, batch_shape(recipe, told), on_gpu=on_gpu)


def measured_peak(run: Run) -> float | None:
    """Return the peak that an estimate can be held against: libraries are not among it."""
    if run.resolved.get("peak_memory") not in _COMPARABLE:
        return None
    return run.metrics.get("peak_memory_bytes")


def batch_shape(recipe: AnyRecipe, told: Mapping[str, Any]) -> BatchShape:
    """Return what a batch may hold; of data not looked at yet, as much as the recipe allows."""
    batch, most = recipe.optimisation.per_device_train_batch_size, recipe.data.max_length
    rows, length = told.get("train_rows", 0), min(told.get("longest_example") or most, most)
    about = (rows, told.get("train_tokens", 0) / max(rows, 1), told.get("validation_rows", 0))
    batch = min(batch, told.get("train_examples") or batch)
    answer = told.get("longest_answer") or length
    return BatchShape(batch, length, answer, *about, is_packed=recipe.data.packing)


def estimate(
    recipe: AnyRecipe, facts: ModelFacts, load: BatchShape, *, on_gpu: bool
) -> MemoryBreakdown | None:
    """Work out what a run will hold at most; None where that is not known.

    On a GPU this is what torch allocates: the driver's own half gigabyte is not among it.
    """
    shape, sizes = facts.shape, number_formats.plan_dtypes(recipe, facts).sizes
    if sizes is None or shape is None or not is_supported(recipe, facts):
        return None
    step = TrainingStep(recipe, facts, shape, load, on_gpu)
    begun = _at_backward(step, sizes)
    widened = replace(begun, scores=0, copies=begun.copies + step.dequantised_bytes)
    training = [begun, widened, *_at_recomputation(step, sizes)]
    holes = _allocator_overhead(step, max(map(_transient_bytes, training)))
    moments = [replace(one, holes=holes) for one in (*training, _at_update(step, sizes))]
    return max([*moments, _at_validation(step, sizes)], key=lambda one: one.total)


def from_dry_run(
    recipe: AnyRecipe,
    facts: ModelFacts,
    load: BatchShape,
    parts: Mapping[str, int],
    *,
    on_gpu: bool,
) -> MemoryBreakdown:
    """Put what a dry run has counted beside what a process needs that no tensor holds."""
    step = TrainingStep(recipe, facts, facts.shape or model_shape.UNKNOWN_SHAPE, load, on_gpu)
    none = MemorySizes(weights=0, adapter=0, gradients=0, optimizer=0, copies=0, compensation=0)
    held: dict[str, Any] = dict(parts)
    made = replace(_constant_parts(step, none), **held)
    is_update = made.gradients > _transient_bytes(made)
    moment: Moment = "update" if is_update else "backward"
    return replace(made, moment=moment, holes=_allocator_overhead(step, _transient_bytes(made)))


def _allocator_overhead(step: TrainingStep, blocks: int) -> int:
    """Return what the allocator loses; on a GPU an estimate is what torch allocates, without it."""
    share = _OVERHEAD[step.is_adapter, step.is_checkpointed][step.is_narrow]
    return 0 if step.on_gpu else round(share * blocks)


def _transient_bytes(one: MemoryBreakdown) -> int:
    """Return what a step takes and frees."""
    return one.copies + one.activations + one.scores


def is_supported(recipe: AnyRecipe, facts: ModelFacts) -> bool:
    """Whether it is known what this model's layers keep in the recipe's precision."""
    mode = PRECISIONS[recipe.precision]
    # An adapter's float32 among 16-bit products, with no autocast between them, is refused.
    is_refused = isinstance(recipe.adapter, Lora) and mode.weights != "float32"
    return facts.family in FAMILY_LAYERS and not is_refused


def _logits_bytes(step: TrainingStep) -> int:
    """Return what scoring the answers takes, when their gradient is worked out tile by tile."""
    rows = step.load.batch * step.load.answer_tokens
    columns = _WIDE_TILE_COLUMNS if step.on_gpu else _TILE_COLUMNS
    tile = min(rows, _TILE_ROWS) * min(step.shape.vocab_size, columns)
    beside = 0 if step.on_gpu else _TILE_WORK + 4 * step.shape.logit_softcapping
    work = tile * (step.compute_bytes + beside)
    answers = rows * step.shape.hidden_size * (step.hidden_state_bytes + step.compute_bytes + 4)
    # The output's own gradient is added up in float32, then written as wide as the weights.
    return work + answers + (0 if step.is_adapter else 4 * step.embedding_size)


def _constant_parts(step: TrainingStep, sizes: MemorySizes) -> MemoryBreakdown:
    """Return what is there at every moment."""
    return MemoryBreakdown(
        moment="backward",
        weights=sizes.weights,
        adapter=sizes.adapter,
        optimizer=sizes.optimizer,
        compensation=sizes.compensation,
        examples=0 if step.on_gpu else example_bytes(step.load),
        runtime=0 if step.on_gpu else _runtime_bytes(step),
        length=step.load.length,
    )


def example_bytes(load: BatchShape) -> int:
    """Return what the rows hold of the host's memory, read and tokenised."""
    return round(load.rows * (_ROW_BYTES + _TOKEN_BYTES * load.row_tokens))


def _runtime_bytes(step: TrainingStep) -> int:
    load, is_narrow = (
        step.load,
        step.compute_bytes < DTYPE_BYTES["float32"] and detect().native_bf16,
    )
    # Of batches that are all as long, `RUNTIME_BYTES` covers the one there is.
    shapes = min(load.rows // load.batch or _SHAPES, _SHAPES) * (load.row_tokens < load.length)
    return RUNTIME_BYTES + KERNEL_BYTES * is_narrow * shapes


def _at_backward(step: TrainingStep, sizes: MemorySizes) -> MemoryBreakdown:
    """Say what is held when the backward pass begins, with the scores at hand."""
    adds_up = step.recipe.optimisation.gradient_accumulation_steps > 1
    layers = step.checkpointed_bytes if step.is_checkpointed else step.shape.layers * step.layer
    return replace(
        _constant_parts(step, sizes),
        gradients=sizes.gradients if adds_up else 0,
        copies=0 if step.is_checkpointed else sizes.copies,
        activations=layers + step.final_norm_bytes,
        scores=_logits_bytes(step),
    )


def _at_recomputation(step: TrainingStep, sizes: MemorySizes) -> list[MemoryBreakdown]:
    """Say what is held when checkpointing computes the first layer again, all others done."""
    if not step.is_checkpointed:
        return []
    layer = step.layer + step.load.tokens * step.shape.hidden_size * step.hidden_state_bytes
    copies = sizes.copies // step.shape.layers + step.dequantised_bytes
    made = _constant_parts(step, sizes)
    return [replace(made, gradients=sizes.gradients, copies=copies, activations=layer)]


def _at_validation(step: TrainingStep, sizes: MemorySizes) -> MemoryBreakdown:
    """Say what is held while a batch is validated: one layer's work, and one tile of scores."""
    batch = step.recipe.evaluation.per_device_eval_batch_size
    batch = min(batch, step.load.validation_examples or batch)
    tokens, shape = batch * step.load.length, step.shape
    rows = min(batch * step.load.answer_tokens, _TILE_ROWS)
    columns = min(shape.vocab_size, _WIDE_TILE_COLUMNS if step.on_gpu else _TILE_COLUMNS)
    work = step.compute_bytes + (0 if step.on_gpu else _FORWARD_WORK)
    made = replace(
        _constant_parts(step, sizes),
        activations=tokens
        * (4 * shape.hidden_size + 3 * shape.intermediate)
        * step.hidden_state_bytes,
        scores=rows * columns * work,
    )
    share = 0 if step.on_gpu else _VALIDATION_OVERHEAD
    return replace(made, holes=round(share * _transient_bytes(made)))


def _at_update(step: TrainingStep, sizes: MemorySizes) -> MemoryBreakdown:
    """Say what is held when the optimizer moves the largest of the weights."""
    return replace(
        _constant_parts(step, sizes),
        moment="update",
        gradients=sizes.gradients,
        scratch=0 if step.is_adapter else step.embedding_size * _scratch_bytes(step.recipe),
    )


def _scratch_bytes(recipe: AnyRecipe) -> int:
    """Return the bytes that an optimizer needs of its own for each number of a weight."""
    if PRECISIONS[recipe.precision].rounding is not None:
        return _ROUNDING_SCRATCH
    return _SCRATCH[recipe.optimisation.optim]


_SCRATCH = {"adamw_torch_fused": 0, "adamw_torch": 8, "adafactor": 12, "sgd": 0}
_ROUNDING_SCRATCH = 24
"""Ours works in float32: gradient, averages, weight and change, one weight at a time."""
