"""What a run will really load, compute in and keep: formats and bytes, before anything starts."""

from collections.abc import Mapping
from dataclasses import dataclass

from studio.methods import AnyRecipe
from studio.recipe.adapters import Lora, keeps_saved_dtypes
from studio.recipe.float_formats import DType
from studio.recipe.precision import PRECISIONS, Precision
from studio.weights.cast_error import Cast
from studio.weights.model_facts import ModelFacts

BYTES: dict[DType, int] = {"float32": 4, "bfloat16": 2, "float16": 2}

STATES = {"adamw_torch_fused": 2, "adamw_torch": 2, "adafactor": 0, "sgd": 0}
"""How many numbers an optimizer keeps for each weight. Adafactor's are too few to count."""

_ADAM_STATES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Bytes by part. Activations are not among them: they depend on the data."""

    weights: int
    adapter: int
    gradients: int
    optimizer: int
    copies: int
    """What autocast keeps of the weights in the narrower format."""
    compensation: int
    """What a mode keeps beside the weights to make up for their few digits."""

    @property
    def total(self) -> int:
        parts = (self.weights, self.adapter, self.gradients, self.optimizer)
        return sum(parts) + self.copies + self.compensation


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What will be: each format by what is held in it."""

    precision: str
    weights: str
    """Of the base model. A full fine-tune trains them, an adapter leaves them as they are."""
    rest: DType | None
    """Of what a quantised model keeps as it is: embeddings, norms, the output. Else None."""
    trained: DType
    """Of the weights that learn."""
    compute: DType
    gradients: DType
    optimizer_states: DType
    scaler: bool
    rounded: Cast | None
    """What loading the base model rounds; None where every weight stays as it was saved."""
    parameters: int | None
    """None where the model's files are not at hand."""
    trained_parameters: int | None
    sizes: Sizes | None
    effective_batch: int
    """Examples an update learns from."""


def plan(recipe: AnyRecipe, facts: ModelFacts) -> Plan:
    mode = PRECISIONS[recipe.precision]
    is_adapter = isinstance(recipe.adapter, Lora)
    quantised = recipe.adapter.quantised
    batch = recipe.optimisation.per_device_train_batch_size
    return Plan(
        precision=mode.name,
        weights=quantised.name if quantised else " and ".join(sorted(formats(recipe, facts))),
        rest=held(recipe, facts) if quantised else None,
        trained=learns_in(recipe, facts),
        compute=mode.compute,
        gradients="float32" if is_adapter else mode.gradients,
        optimizer_states="float32" if is_adapter else mode.optimizer_states,
        scaler=mode.scaler,
        rounded=rounded(recipe, facts),
        parameters=facts.parameters if facts.has_weights else None,
        trained_parameters=_trained(recipe, facts) if facts.has_weights else None,
        sizes=_sizes(recipe, facts) if facts.has_weights else None,
        # A run has one device.
        effective_batch=batch * recipe.optimisation.gradient_accumulation_steps,
    )


def held(recipe: AnyRecipe, facts: ModelFacts) -> DType:
    """Return the format most of the base model is loaded in; quantised ones, what is not."""
    mode = PRECISIONS[recipe.precision]
    if recipe.adapter.quantised is not None:
        return mode.compute
    if mode.autocast is None or not isinstance(recipe.adapter, Lora):
        return mode.weights
    if keeps_own(recipe):
        # Without weights at hand, what the config says is all there is to go by.
        most = next(iter(facts.as_saved), facts.native)
        return next((one for one in BYTES if one == most), mode.weights)
    asked = recipe.adapter.base_dtype
    return next((one for one in BYTES if one == asked), mode.weights)


def keeps_own(recipe: AnyRecipe) -> bool:
    return keeps_saved_dtypes(recipe.adapter, PRECISIONS[recipe.precision])


def formats(recipe: AnyRecipe, facts: ModelFacts) -> Mapping[DType, int]:
    """Return how many weights are loaded in each format, before any is quantised."""
    if keeps_own(recipe) and facts.as_saved:
        return facts.as_saved
    return {held(recipe, facts): facts.parameters}


def between_layers(recipe: AnyRecipe, facts: ModelFacts) -> DType:
    """Return the format of what goes from layer to layer: that of the table of tokens."""
    own = facts.table_format if keeps_own(recipe) else None
    return own or held(recipe, facts)


def rounded(recipe: AnyRecipe, facts: ModelFacts) -> Cast | None:
    """Return what loading the base model rounds, but for what is quantised of it."""
    return facts.rounded(
        held(recipe, facts),
        keeps_own=keeps_own(recipe),
        is_quantised=recipe.adapter.quantised is not None,
    )


def learns_in(recipe: AnyRecipe, facts: ModelFacts) -> DType:
    """Return the format of the weights that learn.

    Peft makes adapters float32, whatever the base model is held in.
    """
    return "float32" if isinstance(recipe.adapter, Lora) else held(recipe, facts)


def _trained(recipe: AnyRecipe, facts: ModelFacts) -> int:
    """Return how many numbers learn: all, or the two thin matrices beside each linear layer."""
    match recipe.adapter:
        case Lora(r=rank):
            return rank * facts.linear_features
        case _:
            return facts.parameters


def _sizes(recipe: AnyRecipe, facts: ModelFacts) -> Sizes:
    mode = PRECISIONS[recipe.precision]
    trained = _trained(recipe, facts)
    if isinstance(recipe.adapter, Lora):
        return Sizes(
            weights=_frozen(recipe, facts),
            adapter=trained * BYTES["float32"],
            gradients=trained * BYTES["float32"],
            optimizer=trained * BYTES["float32"] * STATES[recipe.optimisation.optim],
            copies=_copies(recipe, facts),
            compensation=0,
        )
    return Sizes(
        weights=trained * BYTES[mode.weights],
        adapter=0,
        gradients=trained * BYTES[mode.gradients],
        optimizer=trained * BYTES[mode.optimizer_states] * _states(recipe),
        copies=_copies(recipe, facts),
        compensation=trained * _compensation(mode),
    )


def _frozen(recipe: AnyRecipe, facts: ModelFacts) -> int:
    """Return the bytes of the model beside an adapter."""
    row, width = recipe.adapter.quantised, BYTES[held(recipe, facts)]
    if row is None:
        return sum(count * BYTES[one] for one, count in formats(recipe, facts).items())
    narrow = facts.linear_parameters * row.bytes_per_weight + facts.linear_rows * row.bytes_per_row
    return round(narrow) + (facts.parameters - facts.linear_parameters) * width


def _states(recipe: AnyRecipe) -> int:
    """Return how many numbers are kept for each weight; a mode may bring its own AdamW."""
    has_own = PRECISIONS[recipe.precision].rounding is not None
    return _ADAM_STATES if has_own else STATES[recipe.optimisation.optim]


def _copies(recipe: AnyRecipe, facts: ModelFacts) -> int:
    """Return what autocast keeps of the linear layers until the backward pass is through them."""
    mode = PRECISIONS[recipe.precision]
    own = facts.linear_as_saved if keeps_own(recipe) else {}
    linear = own or {held(recipe, facts): facts.linear_parameters}
    base = sum(count * _copy(mode, one) for one, count in linear.items())
    if not isinstance(recipe.adapter, Lora):
        return base
    return base + _trained(recipe, facts) * _copy(mode, "float32")


def _copy(mode: Precision, trained: DType) -> int:
    if mode.is_float8:
        # Each product scales and casts the weight itself (torchao's Float8Linear), and forgets it.
        return 0
    return BYTES[mode.compute] if BYTES[mode.compute] < BYTES[trained] else 0


def _compensation(mode: Precision) -> int:
    """Return the bytes of a parameter that the row counts and that are none of the usual parts."""
    usual = (
        BYTES[mode.weights]
        + BYTES[mode.gradients]
        + BYTES[mode.optimizer_states] * _ADAM_STATES
        + _copy(mode, mode.weights)
    )
    return max(0, mode.bytes_per_parameter - usual)
