"""The peak memory of a run by part, computed before it starts.

Memory peaks either at the start of the backward pass, which holds everything the forward pass kept,
or at the optimizer step, which holds every gradient:

    backward    weights + optimizer + copies + activations + scores [+ gradients, if accumulated]
    update      weights + optimizer + gradients + scratch

On a CPU the system's allocator loses a share of what a step allocates and frees.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from sqlmodel import Session

from studio.db.tables import Run
from studio.errors import InvalidError
from studio.hardware import detect
from studio.methods import AnyRecipe, count_sequences
from studio.recipe.optimizers import scratch_bytes
from studio.services.estimates import (
    encoder_decoder_memory,
    image_memory,
    judge_memory,
    teacher_memory,
    verified_models,
)
from studio.services.estimates.activation_memory import BatchShape, TrainingStep
from studio.services.estimates.generation_memory import generation_memory
from studio.services.estimates.judge_memory import JudgeFacts
from studio.services.estimates.verified_models import SCORES
from studio.services.precision import number_formats, recommendation
from studio.services.precision.number_formats import DTYPE_BYTES, MemorySizes
from studio.weights import model_config
from studio.weights.model_facts import ModelFacts

Moment = Literal["backward", "update"]

RUNTIME_BYTES = 27_000_000
"""Bytes a trainer takes on a CPU besides its tensors, measured with a model without weights."""
KERNEL_BYTES, _SHAPES = 8_000_000, 7
"""Bytes that oneDNN's 16-bit products take per batch length, and how many lengths the caches
keep: measured with a model without weights, with and without an adapter. A CPU that emulates
bfloat16 uses none: six runs there held 14 to 32 MB less than with them."""

_OVERHEAD = {
    # (adapter, checkpointed): products in float32, in 16 bits
    (False, False): (0.2, 0.2),
    (False, True): (0.3, 0.3),
    (True, False): (0.42, 0.2),
    (True, True): (0.75, 0.55),
}
"""The share of what a step allocates and frees that the system's allocator loses between blocks, in
a process configured by `studio.processes.allocator`: fitted to 35 runs of 2 to 34 million
weights.

The cause is alignment: for an aligned block glibc looks for a gap that is larger by more than the
alignment, and skips one that fits exactly. Freeing twenty blocks of 2.4 MB one by one and
allocating them again took half as much memory again (glibc 2.36). Gradients of weights fill such
gaps; an adapter has hardly any.

"""
_VALIDATION_OVERHEAD = 0.1
"""The same share during validation: two runs whose validation used more than training lost 0 and
0.11."""

_ROW_BYTES, _TOKEN_BYTES = 4000, 70
"""Bytes per loaded row and per token of it; measured on 300 to 10,000 rows."""

_COMPARABLE = frozenset({"allocated", "resident"})
"""Ways to measure a peak that count the same as an estimate: all weights, but no libraries."""

_TILE_ROWS, _TILE_COLUMNS = 4096, 4096
_WIDE_TILE_COLUMNS = 32768
"""Answer tokens scored at once, and vocabulary entries they are scored against: more on a GPU.

A GPU allocates the whole tile even if the vocabulary is smaller. A CPU does, too, but what is never
written takes no memory there.
"""
GPU_RUNTIME_BYTES = 67_000_000
"""Bytes that torch allocates on a GPU besides tensors: workspaces of matrix products for the
forward and the backward pass. Measured on an H100; older GPUs need less."""
_TILE_WORK = 29
"""Bytes per value of a tile while its gradient is computed, besides the value itself."""

_FORWARD_WORK = 17
"""The same while a tile is only scored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBreakdown:
    """Bytes by part at the peak of a step."""

    moment: Moment
    weights: int
    adapter: int
    teacher: int = 0
    reward_models: int = 0
    optimizer: int
    compensation: int
    gradients: int = 0
    copies: int = 0
    activations: int = 0
    """Kept by the layers for the backward pass."""
    scores: int = 0
    """Logits and loss."""
    scratch: int = 0
    """Temporary memory of the optimizer step."""
    holes: int = 0
    """Allocator overhead: gaps between blocks, too small for the next one."""
    examples: int
    """The loaded and tokenised rows."""
    runtime: int
    length: int
    """Tokens of the longest example that was assumed."""

    @property
    def parts(self) -> dict[str, int]:
        """Return the parts that are not empty, largest first."""
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
    """Estimate a run's memory, with its real example lengths once it has read them."""
    teacher = run.recipe.teacher
    try:
        facts = recommendation.load_model_facts(db, run.recipe.base_model)
        teachers = recommendation.load_model_facts(db, teacher.name) if teacher else None
    except InvalidError:
        # A model was deleted since; the run may have ended long ago.
        return None
    judges = judge_memory.load(db, run.recipe)
    return estimate_from_resolved(run.recipe, facts, run.resolved, teachers, judges)


def estimate_from_resolved(
    recipe: AnyRecipe,
    facts: ModelFacts,
    resolved: Mapping[str, Any],
    teacher: ModelFacts | None = None,
    judges: Sequence[JudgeFacts] | None = (),
) -> MemoryBreakdown | None:
    """Estimate a run's memory from what it reported about its data."""
    on_gpu, batch = (
        resolved.get("device", detect().device) != "cpu",
        batch_shape(recipe, resolved),
    )
    return estimate(recipe, facts, batch, on_gpu=on_gpu, teacher=teacher, judges=judges)


def measured_peak(run: Run) -> float | None:
    """Return the peak that is comparable with an estimate, which excludes libraries."""
    if run.resolved.get("peak_memory") not in _COMPARABLE:
        return None
    return run.metrics.get("peak_memory_bytes")


def batch_shape(recipe: AnyRecipe, resolved: Mapping[str, Any]) -> BatchShape:
    """Return the batch shape; without known data, the largest that the recipe allows."""
    batch, max_length = recipe.optimisation.per_device_train_batch_size, recipe.data.max_length
    rows, length = (
        resolved.get("train_rows", 0),
        min(resolved.get("longest_example") or max_length, max_length),
    )
    row_stats = (
        rows,
        resolved.get("train_tokens", 0) / max(rows, 1),
        resolved.get("validation_rows", 0),
    )
    batch = sequences_at_a_time(recipe, min(batch, resolved.get("train_examples") or batch))
    answer_length = recipe.answer_tokens or resolved.get("longest_answer") or length
    length += recipe.answer_tokens
    return BatchShape(batch, length, answer_length, *row_stats, is_packed=recipe.data.packing)


def sequences_at_a_time(recipe: AnyRecipe, rows: int) -> int:
    """Return how many sequences keep their activations at a time, in a step of some rows."""
    sequences = count_sequences(recipe, rows)
    return min(sequences, recipe.mini_batch or sequences)


def estimate(
    recipe: AnyRecipe,
    facts: ModelFacts,
    batch: BatchShape,
    *,
    on_gpu: bool,
    teacher: ModelFacts | None = None,
    judges: Sequence[JudgeFacts] | None = (),
) -> MemoryBreakdown | None:
    """Return the peak memory of a run; None if it is unknown.

    On a GPU this is what torch allocates, without the driver's own 0.5 GB. `judges` are the reward
    models that score its answers; None if nothing is known of one.

    """
    if judges is None or (recipe.teacher and (teacher is None or teacher.shape is None)):
        return None
    if recipe.outputs in SCORES:
        facts = verified_models.with_head(recipe, facts.without_output())
    facts, images = image_memory.split(recipe, facts)
    shape, sizes = facts.shape, number_formats.plan_dtypes(recipe, facts).sizes
    is_supported = verified_models.is_supported(recipe, facts, on_gpu=on_gpu)
    if sizes is None or shape is None or not is_supported:
        return None
    step = TrainingStep(
        recipe,
        facts,
        verified_models.shape_in_training(recipe, facts, shape),
        batch,
        on_gpu,
        teacher=teacher,
        judges=judges,
    )
    sizes = verified_models.with_trained_head(step, sizes)
    sizes = replace(sizes, weights=sizes.weights + images)
    backward = _at_backward(step, sizes)
    dequantising = replace(backward, scores=0, copies=backward.copies + step.dequantised_bytes)
    reading = replace(
        _constant_parts(step, sizes),
        activations=teacher_memory.forward_bytes(step, step.load.tokens),
    )
    training = [reading, backward, dequantising, *_at_recomputation(step, sizes)]
    overhead = _allocator_overhead(step, max(map(_transient_bytes, training)))
    moments = [
        replace(breakdown, holes=overhead) for breakdown in (*training, _at_update(step, sizes))
    ]
    last = _at_writing if recipe.answer_tokens else _at_validation
    moments += [last(step, sizes), _at_scoring(step, sizes)]
    return max(moments, key=lambda one: one.total)


def from_dry_run(
    recipe: AnyRecipe,
    facts: ModelFacts,
    batch: BatchShape,
    parts: Mapping[str, int],
    *,
    on_gpu: bool,
    judges: Sequence[JudgeFacts] = (),
) -> MemoryBreakdown:
    """Add what a dry run does not simulate to what it counted.

    That is the process overhead, which no tensor holds, and the models that score answers.
    """
    shape = facts.shape or model_config.UNKNOWN_SHAPE
    step = TrainingStep(recipe, facts, shape, batch, on_gpu, judges=judges)
    no_sizes = MemorySizes(weights=0, adapter=0, gradients=0, optimizer=0, copies=0, compensation=0)
    counted: dict[str, Any] = dict(parts)
    breakdown = replace(_constant_parts(step, no_sizes), **counted)
    is_update = breakdown.gradients > _transient_bytes(breakdown)
    moment: Moment = "update" if is_update else "backward"
    return replace(
        breakdown, moment=moment, holes=_allocator_overhead(step, _transient_bytes(breakdown))
    )


def _allocator_overhead(step: TrainingStep, blocks: int) -> int:
    """Return the allocator overhead; 0 on a GPU, where estimates are what torch allocates."""
    share = _OVERHEAD[step.is_adapter, step.is_checkpointed][step.is_narrow]
    return 0 if step.on_gpu else round(share * blocks)


def _transient_bytes(breakdown: MemoryBreakdown) -> int:
    """Return what a step allocates and frees."""
    return breakdown.copies + breakdown.activations + breakdown.scores


def _logits_bytes(step: TrainingStep) -> int:
    """Return the bytes of logits and loss, with the gradient computed tile by tile.

    Without logits, memory peaks where the backward pass has reached the last layer: gradients of
    its output, in float32, and of what is inside its MLP.
    """
    if step.facts.kind == "encoder_decoder":
        # A copy of the output layer, which is the token embeddings, unless they are narrow.
        is_cast = step.hidden_state_bytes > step.compute_bytes
        copy = step.embedding_size * step.compute_bytes * is_cast
        return copy + encoder_decoder_memory.logits_bytes(step.load, step.shape.vocab_size)
    if step.recipe.outputs in SCORES:
        return _layer_gradients(step)
    rows = step.load.batch * step.load.answer_tokens
    tile = min(rows, _TILE_ROWS) * _tile_columns(step)
    extra_bytes = 0 if step.on_gpu else _TILE_WORK + 4 * step.shape.logit_softcapping
    work = tile * (step.compute_bytes + extra_bytes)
    if step.teacher is not None:
        work = teacher_memory.comparison_bytes(step, rows)
    answer_bytes = (
        rows * step.shape.hidden_size * (step.hidden_state_bytes + step.compute_bytes + 4)
    )
    # The gradient of the output layer is accumulated in float32, then cast to the weights' dtype.
    gradient = 4 * step.embedding_size * (step.part.has_output or step.trains_rows)
    return work + answer_bytes + gradient + _copied_table_bytes(step) + _cast_table_bytes(step)


def _tile_columns(step: TrainingStep) -> int:
    if step.on_gpu:
        return _WIDE_TILE_COLUMNS
    return min(step.shape.vocab_size, _TILE_COLUMNS)


def _cast_table_bytes(step: TrainingStep) -> int:
    """Return the bytes of cast tiles of the output layer: the last one and the new one.

    An H100 took so much more, with an adapter on a model of 65,536 vocabulary entries.
    """
    vocabulary, columns = step.shape.vocab_size, _tile_columns(step)
    is_cast = step.hidden_state_bytes > step.compute_bytes
    return is_cast * min(vocabulary, 2 * columns) * step.shape.hidden_size * step.compute_bytes


def _copied_table_bytes(step: TrainingStep) -> int:
    """Return the bytes of the output layer with new rows: peft copies it to put them in."""
    return step.hidden_state_bytes * step.embedding_size * step.trains_rows


def _constant_parts(step: TrainingStep, sizes: MemorySizes) -> MemoryBreakdown:
    """Return what is in memory at every moment."""
    return MemoryBreakdown(
        moment="backward",
        weights=sizes.weights * (1 + step.recipe.keeps_start),
        adapter=sizes.adapter,
        teacher=teacher_memory.weight_bytes(step.recipe.teacher, step.teacher),
        reward_models=judge_memory.weight_bytes(step.judges, on_gpu=step.on_gpu),
        optimizer=sizes.optimizer,
        compensation=sizes.compensation,
        examples=0 if step.on_gpu else example_bytes(step.load),
        runtime=GPU_RUNTIME_BYTES if step.on_gpu else _runtime_bytes(step),
        length=step.load.length,
    )


def example_bytes(batch: BatchShape) -> int:
    """Return the host memory of the loaded and tokenised rows."""
    return round(batch.rows * (_ROW_BYTES + _TOKEN_BYTES * batch.row_tokens))


def _runtime_bytes(step: TrainingStep) -> int:
    batch, is_narrow = (
        step.load,
        step.compute_bytes < DTYPE_BYTES["float32"] and detect().native_bf16,
    )
    # If all batches have the same length, `RUNTIME_BYTES` covers that single shape.
    has_shorter = batch.row_tokens < count_sequences(step.recipe, 1) * batch.length
    shapes = min(batch.rows // batch.batch or _SHAPES, _SHAPES) * has_shorter
    return RUNTIME_BYTES + KERNEL_BYTES * is_narrow * shapes


def _at_backward(step: TrainingStep, sizes: MemorySizes) -> MemoryBreakdown:
    """Return the memory at the start of the backward pass, with the logits."""
    recipe = step.recipe
    adds_up = recipe.optimisation.gradient_accumulation_steps > 1 or recipe.mini_batch is not None
    return replace(
        _constant_parts(step, sizes),
        gradients=sizes.gradients if adds_up else 0,
        copies=0 if step.is_checkpointed else sizes.copies,
        activations=_bytes_on_device(step),
        scores=_logits_bytes(step),
    )


def _bytes_on_device(step: TrainingStep) -> int:
    """Return what of it is on the device: of what is offloaded, no more than one layer's."""
    kept = kept_bytes(step)
    return min(kept, step.layer) if step.is_offloaded else kept


def kept_bytes(step: TrainingStep) -> int:
    """Return what the forward pass keeps for the backward pass."""
    if step.facts.kind == "encoder_decoder":
        kept = encoder_decoder_memory
        return kept.checkpointed_bytes(step) if step.is_checkpointed else kept.all_layers(step)
    layers = step.checkpointed_bytes if step.is_checkpointed else step.all_layers
    return layers + step.final_norm_bytes + step.embedding_bytes


def _at_recomputation(step: TrainingStep, sizes: MemorySizes) -> list[MemoryBreakdown]:
    """Return the memory when checkpointing recomputes the first layer, after all others.

    Encoders, and models with one, were also verified at the layers that are recomputed first.
    """
    if not step.is_checkpointed:
        return []
    passed = step.load.tokens * step.shape.hidden_size * step.hidden_state_bytes
    copies = sizes.copies // step.shape.layers + step.dequantised_bytes
    constant = replace(_constant_parts(step, sizes), copies=copies)
    trained = replace(constant, gradients=sizes.gradients)
    match step.facts.kind:
        case "encoder":
            work, facts = step.layer + _layer_gradients(step), step.facts
            kept = step.checkpointed_bytes + step.embedding_bytes + step.mask_bytes
            # The embeddings have their gradients last.
            gradients = round(sizes.gradients * facts.linear_parameters / facts.parameters)
            last = replace(constant, activations=passed + work, gradients=gradients)
            return [replace(constant, activations=kept + work), last]
        case "encoder_decoder":
            pair = encoder_decoder_memory
            work = _layer_gradients(step)
            first = replace(constant, activations=pair.bytes_at_last_decoder_layer(step) + work)
            last = replace(trained, activations=pair.bytes_at_last_encoder_layer(step) + work)
            return [first, last]
        case _:
            return [replace(trained, activations=step.layer + passed)]


def _layer_gradients(step: TrainingStep) -> int:
    """Return the bytes of gradients inside a layer: of its output, in float32, and of its MLP.

    Only autocast keeps an encoder's until those of its casts are there. Eager attention has those
    of its scores.
    """
    if step.facts.kind == "encoder" and not step.casts_inputs:
        scores = step.shape.heads * step.load.length * step.softmax_bytes * step.is_eager
        outputs = 2 * step.hidden_state_bytes * step.shape.hidden_size
        inside = step.compute_bytes * step.shape.intermediate
        return step.load.tokens * (max(outputs, inside) + scores)
    inside = 2 * step.shape.intermediate * step.compute_bytes
    return step.load.tokens * (2 * 4 * step.shape.hidden_size + inside)


def _at_validation(step: TrainingStep, sizes: MemorySizes) -> MemoryBreakdown:
    """Return the memory of validating a batch: one layer's work and one tile of logits."""
    batch = step.recipe.evaluation.per_device_eval_batch_size
    batch = count_sequences(step.recipe, min(batch, step.load.validation_examples or batch))
    tokens, shape = batch * step.load.length, step.shape
    load = replace(step.load, batch=batch)
    rows = min(batch * step.load.answer_tokens, _TILE_ROWS)
    bytes_per_logit = step.compute_bytes + (0 if step.on_gpu else _FORWARD_WORK)
    breakdown = replace(
        _constant_parts(step, sizes),
        activations=max(
            tokens * (4 * shape.hidden_size + 3 * shape.intermediate) * step.hidden_state_bytes,
            teacher_memory.forward_bytes(step, tokens),
        ),
        scores=_validation_scores(
            step, load, rows * _tile_columns(step) * bytes_per_logit + _copied_table_bytes(step)
        ),
    )
    share = 0 if step.on_gpu else _VALIDATION_OVERHEAD
    return replace(breakdown, holes=round(share * _transient_bytes(breakdown)))


def _at_writing(step: TrainingStep, sizes: MemorySizes) -> MemoryBreakdown:
    """Return the memory of writing the answers to learn from."""
    memory = generation_memory(step)
    return replace(
        _constant_parts(step, sizes),
        copies=sizes.copies,
        activations=memory.cache + memory.layer,
        scores=memory.logits,
    )


def _at_scoring(step: TrainingStep, sizes: MemorySizes) -> MemoryBreakdown:
    """Return the memory of reading answers with the models that score them."""
    work = judge_memory.work_bytes(step.judges, step.recipe.answers_per_round)
    return replace(_constant_parts(step, sizes), activations=work)


def _validation_scores(step: TrainingStep, load: BatchShape, tile: int) -> int:
    """Return the bytes of logits and loss during validation."""
    if step.facts.kind == "encoder_decoder":
        return encoder_decoder_memory.logits_bytes(load, step.shape.vocab_size)
    if step.teacher is not None:
        return teacher_memory.comparison_bytes(step, load.batch * load.answer_tokens)
    return 0 if step.recipe.outputs in SCORES else tile


def _at_update(step: TrainingStep, sizes: MemorySizes) -> MemoryBreakdown:
    """Return the memory while the optimizer updates the largest weight."""
    recipe = step.recipe
    return replace(
        _constant_parts(step, sizes),
        moment="update",
        gradients=sizes.gradients,
        scratch=step.largest_trained * scratch_bytes(recipe.optimisation.optim, recipe.precision),
    )
