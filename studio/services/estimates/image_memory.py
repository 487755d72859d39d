"""Memory of models that read images: a language model, and frozen parts in front of it.

Images are tokens of the language model, so they count as length. Frozen parts keep nothing for
the backward pass: only their weights stay in memory.
"""

from collections import Counter
from dataclasses import replace

from studio.methods import AnyRecipe
from studio.services.precision import number_formats
from studio.services.precision.number_formats import DTYPE_BYTES
from studio.weights import image_text
from studio.weights.model_facts import ModelFacts


def split(recipe: AnyRecipe, facts: ModelFacts) -> tuple[ModelFacts, int]:
    """Return the facts of the language model alone, and the bytes of what reads images.

    The shape is unknown if that is trained, too: what it keeps is not known. Other models stay as
    they are.
    """
    if facts.kind != "image_text":
        return facts, 0
    options = recipe.images
    if options is None or not (options.freeze_tower and options.freeze_projector):
        return replace(facts, shape=None), 0
    language = language_model(facts)
    row = recipe.adapter.quantised
    width = row.bytes_per_weight if row else DTYPE_BYTES[number_formats.weight_dtype(recipe, facts)]
    return language, round((facts.parameters - language.parameters) * width)


def language_model(facts: ModelFacts) -> ModelFacts:
    """Return the facts of the language model of a model that reads images."""
    weights = tuple(
        weight for weight in facts.weights if image_text.part_of(weight.path, facts.family) is None
    )
    own = sum(weight.size for weight in weights)
    layers = facts.linear_layers
    linear = sum(layer.outputs * layer.inputs for layer in layers)
    main = next(iter(facts.load_dtypes), None)
    loaded = Counter(facts.load_dtypes)
    if main is not None:
        loaded[main] -= facts.parameters - own
    return replace(
        facts,
        family=facts.language_family,
        kind="causal",
        weights=weights,
        parameters=own,
        load_dtypes=dict(+loaded),
        linear_load_dtypes={main: linear} if main is not None else {},
        linear_parameters=linear,
        linear_rows=sum(layer.outputs for layer in layers),
    )
