"""What a run will really load, compute in and keep: formats and bytes, before anything starts."""

from collections.abc import Mapping
from dataclasses import dataclass

from studio.methods import AnyRecipe
from studio.recipe.adapters import Lora, keeps_saved_dtypes
from studio.recipe.float_formats import DType
from studio.recipe.precision import PRECISIONS, Precision
from studio.weights.cast_error import CastRounding
from studio.weights.model_facts import ModelFacts

DTYPE_BYTES: dict[DType, int] = {"float32": 4, "bfloat16": 2, "float16": 2}

OPTIMIZER_STATES = {"adamw_torch_fused": 2, "adamw_torch": 2, "adafactor": 0, "sgd": 0}
"""How many numbers an optimizer keeps for each weight. Adafactor's are too few to count."""

_ADAM_STATES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySizes:
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
class DTypePlan:
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
    rounded: CastRounding | None
    """What loading the base model rounds; None where every weight stays as it was saved."""
    parameters: int | None
    """None where the model's files are not at hand."""
    trained_parameters: int | None
    sizes: MemorySizes | None
    effective_batch: int
    """Examples an update learns from."""


def plan_dtypes(recipe: AnyRecipe, facts: ModelFacts) -> DTypePlan:
    mode = PRECISIONS[recipe.precision]
    is_adapter = isinstance(recipe.adapter, Lora)
    quantised = recipe.adapter.quantised
    batch = recipe.optimisation.per_device_train_batch_size
    return DTypePlan(
        precision=mode.name,
        weights=quantised.name
        if quantised
        else " and ".join(sorted(count_by_dtype(recipe, facts))),
        rest=weight_dtype(recipe, facts) if quantised else None,
        trained=trained_dtype(recipe, facts),
        compute=mode.compute,
        gradients="float32" if is_adapter else mode.gradients,
        optimizer_states="float32" if is_adapter else mode.optimizer_states,
        scaler=mode.scaler,
        rounded=rounding_on_load(recipe, facts),
        parameters=facts.parameters if facts.has_weights else None,
        trained_parameters=_trained_parameters(recipe, facts) if facts.has_weights else None,
        sizes=_memory_sizes(recipe, facts) if facts.has_weights else None,
        # A run has one device.
        effective_batch=batch * recipe.optimisation.gradient_accumulation_steps,
    )


def weight_dtype(recipe: AnyRecipe, facts: ModelFacts) -> DType:
    """Return the format most of the base model is loaded in; quantised ones, what is not."""
    mode = PRECISIONS[recipe.precision]
    if recipe.adapter.quantised is not None:
        return mode.compute
    if mode.autocast is None or not isinstance(recipe.adapter, Lora):
        return mode.weights
    if recipe_keeps_saved_dtypes(recipe):
        # Without weights at hand, what the config says is all there is to go by.
        most = next(iter(facts.load_dtypes), facts.native)
        return next((one for one in DTYPE_BYTES if one == most), mode.weights)
    asked = recipe.adapter.base_dtype
    return next((one for one in DTYPE_BYTES if one == asked), mode.weights)


def recipe_keeps_saved_dtypes(recipe: AnyRecipe) -> bool:
    return keeps_saved_dtypes(recipe.adapter, PRECISIONS[recipe.precision])


def count_by_dtype(recipe: AnyRecipe, facts: ModelFacts) -> Mapping[DType, int]:
    """Return how many weights are loaded in each format, before any is quantised."""
    if recipe_keeps_saved_dtypes(recipe) and facts.load_dtypes:
        return facts.load_dtypes
    return {weight_dtype(recipe, facts): facts.parameters}


def hidden_state_dtype(recipe: AnyRecipe, facts: ModelFacts) -> DType:
    """Return the format of what goes from layer to layer: that of the table of tokens."""
    own = facts.embedding_dtype if recipe_keeps_saved_dtypes(recipe) else None
    return own or weight_dtype(recipe, facts)


def rounding_on_load(recipe: AnyRecipe, facts: ModelFacts) -> CastRounding | None:
    """Return what loading the base model rounds, but for what is quantised of it."""
    return facts.rounding_to(
        weight_dtype(recipe, facts),
        keeps_own=recipe_keeps_saved_dtypes(recipe),
        is_quantised=recipe.adapter.quantised is not None,
    )


def trained_dtype(recipe: AnyRecipe, facts: ModelFacts) -> DType:
    """Return the format of the weights that learn.

    Peft makes adapters float32, whatever the base model is held in.
    """
    return "float32" if isinstance(recipe.adapter, Lora) else weight_dtype(recipe, facts)


def _trained_parameters(recipe: AnyRecipe, facts: ModelFacts) -> int:
    """Return how many numbers learn: all, or the two thin matrices beside each linear layer."""
    match recipe.adapter:
        case Lora(r=rank):
            return rank * facts.linear_features
        case _:
            return facts.parameters


def _memory_sizes(recipe: AnyRecipe, facts: ModelFacts) -> MemorySizes:
    mode = PRECISIONS[recipe.precision]
    trained = _trained_parameters(recipe, facts)
    if isinstance(recipe.adapter, Lora):
        return MemorySizes(
            weights=_base_bytes(recipe, facts),
            adapter=trained * DTYPE_BYTES["float32"],
            gradients=trained * DTYPE_BYTES["float32"],
            optimizer=trained
            * DTYPE_BYTES["float32"]
            * OPTIMIZER_STATES[recipe.optimisation.optim],
            copies=_autocast_copies(recipe, facts),
            compensation=0,
        )
    return MemorySizes(
        weights=trained * DTYPE_BYTES[mode.weights],
        adapter=0,
        gradients=trained * DTYPE_BYTES[mode.gradients],
        optimizer=trained * DTYPE_BYTES[mode.optimizer_states] * _optimizer_states(recipe),
        copies=_autocast_copies(recipe, facts),
        compensation=trained * _compensation_bytes(mode),
    )


def _base_bytes(recipe: AnyRecipe, facts: ModelFacts) -> int:
    """Return the bytes of the model beside an adapter."""
    row, width = recipe.adapter.quantised, DTYPE_BYTES[weight_dtype(recipe, facts)]
    if row is None:
        return sum(count * DTYPE_BYTES[one] for one, count in count_by_dtype(recipe, facts).items())
    narrow = facts.linear_parameters * row.bytes_per_weight + facts.linear_rows * row.bytes_per_row
    return round(narrow) + (facts.parameters - facts.linear_parameters) * width


def _optimizer_states(recipe: AnyRecipe) -> int:
    """Return how many numbers are kept for each weight; a mode may bring its own AdamW."""
    has_own = PRECISIONS[recipe.precision].rounding is not None
    return _ADAM_STATES if has_own else OPTIMIZER_STATES[recipe.optimisation.optim]


def _autocast_copies(recipe: AnyRecipe, facts: ModelFacts) -> int:
    """Return what autocast keeps of the linear layers until the backward pass is through them."""
    mode = PRECISIONS[recipe.precision]
    own = facts.linear_load_dtypes if recipe_keeps_saved_dtypes(recipe) else {}
    linear = own or {weight_dtype(recipe, facts): facts.linear_parameters}
    base = sum(count * _copy_bytes(mode, one) for one, count in linear.items())
    if not isinstance(recipe.adapter, Lora):
        return base
    return base + _trained_parameters(recipe, facts) * _copy_bytes(mode, "float32")


def _copy_bytes(mode: Precision, trained: DType) -> int:
    if mode.is_float8:
        # Each product scales and casts the weight itself (torchao's Float8Linear), and forgets it.
        return 0
    return DTYPE_BYTES[mode.compute] if DTYPE_BYTES[mode.compute] < DTYPE_BYTES[trained] else 0


def _compensation_bytes(mode: Precision) -> int:
    """Return the bytes of a parameter that the row counts and that are none of the usual parts."""
    usual = (
        DTYPE_BYTES[mode.weights]
        + DTYPE_BYTES[mode.gradients]
        + DTYPE_BYTES[mode.optimizer_states] * _ADAM_STATES
        + _copy_bytes(mode, mode.weights)
    )
    return max(0, mode.bytes_per_parameter - usual)
