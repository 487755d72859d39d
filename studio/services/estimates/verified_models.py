"""Which models and recipes have a closed estimate of memory, and what a method makes of a model."""

from dataclasses import replace

from studio.methods import AnyRecipe
from studio.recipe.adapters import Adapter, Lora
from studio.recipe.optimizers import OPTIMIZERS
from studio.recipe.precision import PRECISIONS
from studio.services.estimates.activation_memory import TrainingStep
from studio.services.precision.number_formats import MemorySizes
from studio.weights import encoder_layers, encoders
from studio.weights.family_limits import FAMILY_LAYERS
from studio.weights.model_config import ModelShape
from studio.weights.model_facts import ModelFacts

SCORES = frozenset({"score", "label", "number", "steps", "entities", "vector", "relevance"})
"""Outputs of models that have a small head or none, and no layer that scores every token."""
_WITHOUT_SQUARE = frozenset({"steps", "vector"})
"""Those without the square layer that encoders have in other heads."""


def shape_in_training(recipe: AnyRecipe, facts: ModelFacts, shape: ModelShape) -> ModelShape:
    """Return the shape without the dropout that methods switch off whose models give scores.

    They reach dropout that is a module, and not what some families' attention computes itself.
    """
    if recipe.outputs not in SCORES:
        return shape
    stays = shape.attention_dropout and facts.family in encoder_layers.FUNCTIONAL_DROPOUT
    return replace(shape, attention_dropout=stays, residual_dropout=False, activation_dropout=False)


def is_supported(recipe: AnyRecipe, facts: ModelFacts, *, on_gpu: bool) -> bool:
    """Whether the layers' activation memory is known for this model and precision."""
    mode = PRECISIONS[recipe.precision]
    # A float32 adapter on 16-bit weights without autocast is refused.
    if isinstance(recipe.adapter, Adapter) and mode.weights != "float32":
        return False
    match facts.kind:
        case "encoder":
            is_known = _is_known_encoder(recipe, facts) and recipe.outputs in SCORES
        case "encoder_decoder":
            is_known = _is_known_pair(facts, on_gpu=on_gpu) and recipe.outputs == "rewrite"
        case _:
            return facts.family in FAMILY_LAYERS
    return is_known and _is_plain(recipe)


def _is_known_encoder(recipe: AnyRecipe, facts: ModelFacts) -> bool:
    if recipe.optimisation.activation_checkpointing:
        return facts.family in (
            encoder_layers.ENCODER_LAYERS.keys() - encoder_layers.UNVERIFIED_CHECKPOINTING
        )
    return facts.family in encoder_layers.ENCODER_LAYERS


def _is_known_pair(facts: ModelFacts, *, on_gpu: bool) -> bool:
    """Whether the layers of an encoder-decoder are known.

    A fused kernel, which a GPU has also with dropout, keeps the positions of T5 in its own way.
    """
    spec = encoder_layers.PAIR_LAYERS.get(facts.family)
    if spec is None or facts.decoder is None:
        return False
    return spec.norm != "t5" or (facts.decoder.residual_dropout and not on_gpu)


def _is_plain(recipe: AnyRecipe) -> bool:
    """Whether a recipe trains all weights, or a LoRA adapter of all linear layers, as verified."""
    adapter, mode = recipe.adapter, PRECISIONS[recipe.precision]
    if recipe.model.attention != "automatic" or mode.is_float8 or mode.matmul != mode.compute:
        return False
    match adapter:
        case Lora():
            is_whole = adapter.targets.is_everything and adapter.trained.is_nothing
            return is_whole and adapter.variant == "plain" and adapter.quantised is None
        case _:
            return adapter.trained.is_everything


def _head_size(recipe: AnyRecipe, facts: ModelFacts) -> int:
    """Return the number of weights of the square layer in an encoder's head; others have none."""
    if facts.kind != "encoder" or facts.shape is None or recipe.outputs in _WITHOUT_SQUARE:
        return 0
    return facts.shape.hidden_size**2


def with_head(recipe: AnyRecipe, facts: ModelFacts) -> ModelFacts:
    """Return the facts with the layer of an encoder's head that its files lack."""
    encoder = encoders.ENCODERS.get(facts.family)
    names = [part.rpartition(".")[2] for part in encoder.head[:-1]] if encoder else []
    if any(f"{name}." in weight.path for name in names for weight in facts.weights):
        return facts
    return replace(facts, parameters=facts.parameters + _head_size(recipe, facts))


def with_trained_head(step: TrainingStep, sizes: MemorySizes) -> MemorySizes:
    """Return the sizes with a copy of the head, which is trained next to an adapter in float32."""
    size = 4 * _head_size(step.recipe, step.facts) * step.is_adapter
    return replace(
        sizes,
        adapter=sizes.adapter + size,
        gradients=sizes.gradients + size,
        optimizer=sizes.optimizer + size * OPTIMIZERS[step.recipe.optimisation.optim].states,
    )
