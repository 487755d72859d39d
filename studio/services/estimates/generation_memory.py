"""The memory of writing answers while a model trains: the cache of keys and values, and logits."""

from dataclasses import dataclass

from studio.services.estimates.activation_memory import TrainingStep

_LOGIT_COPIES = 6
"""Copies of the last logits in float32: as computed, divided by the temperature, their logarithms
at this token and at the one before, their probabilities, and the work of choosing from them
(`transformers.generation`); measured at 64 and 32 answers with 32,000 tokens."""


@dataclass(frozen=True, slots=True)
class GenerationMemory:
    """Bytes while answers are written."""

    cache: int
    """Keys and values of all layers, and a copy of one layer's while it grows by a token."""
    logits: int
    layer: int
    """The work of one layer while the prompts are read."""


def generation_memory(step: TrainingStep) -> GenerationMemory:
    """Return the memory of the largest batch of answers, each of the maximum length."""
    recipe, shape = step.recipe, step.shape
    answers = min(recipe.answers_at_once, recipe.answers_per_round)
    prompts = answers * (step.load.length - recipe.answer_tokens)
    per_layer = 2 * shape.key_width * step.compute_bytes * answers * step.load.length
    inner = 4 * shape.hidden_size + 3 * shape.intermediate
    return GenerationMemory(
        cache=per_layer * (shape.layers + 1),
        logits=answers * shape.vocab_size * 4 * _LOGIT_COPIES,
        layer=prompts * inner * step.hidden_state_bytes,
    )
