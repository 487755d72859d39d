"""The number formats and bytes a run will load, compute in and keep, before it starts."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain

from studio.methods import AnyRecipe
from studio.recipe.adapters import Adapter, AnyAdapter, FullFineTune, Lora, keeps_saved_dtypes
from studio.recipe.optimizers import BLOCK, MIN_8BIT_SIZE, OPTIMIZERS
from studio.recipe.precision import PRECISIONS, DType, Precision
from studio.weights.adapter_targets import AdapterTargets
from studio.weights.model_facts import ModelFacts
from studio.weights.rounding_error import CastRounding

DTYPE_BYTES: dict[DType, int] = {"float32": 4, "bfloat16": 2, "float16": 2}

_ADAM_STATES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySizes:
    """Bytes by part. Activations are not included, because they depend on the data."""

    weights: int
    adapter: int
    gradients: int
    optimizer: int
    copies: int
    """Copies of the weights that autocast keeps in the narrower dtype."""
    compensation: int
    """What a mode keeps besides the weights to compensate for their low precision."""

    @property
    def total(self) -> int:
        parts = (self.weights, self.adapter, self.gradients, self.optimizer)
        return sum(parts) + self.copies + self.compensation


@dataclass(frozen=True, slots=True, kw_only=True)
class DTypePlan:
    """The planned formats: the dtype of everything a run holds."""

    precision: str
    weights: str
    """Dtype of the base model; trained in a full fine-tune, frozen under an adapter."""
    rest: DType | None
    """Dtype of what a quantised model keeps as it is: embeddings, norms, output; else None."""
    trained: DType
    """Dtype of the trained weights."""
    compute: DType
    gradients: DType
    optimizer_states: DType
    scaler: bool
    rounded: CastRounding | None
    """What loading the base model rounds; None if every weight keeps its saved value."""
    parameters: int | None
    """None if the model's files are not on this machine."""
    trained_parameters: int | None
    sizes: MemorySizes | None
    effective_batch: int
    """Examples per optimizer update."""


def plan_dtypes(recipe: AnyRecipe, facts: ModelFacts) -> DTypePlan:
    mode = PRECISIONS[recipe.precision]
    is_adapter = isinstance(recipe.adapter, Adapter)
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
    """Return the dtype of most base weights; for quantised models, of the weights that are not."""
    mode = PRECISIONS[recipe.precision]
    if recipe.adapter.quantised is not None:
        return mode.compute
    if mode.autocast is None or not isinstance(recipe.adapter, Adapter):
        return mode.weights
    if recipe_keeps_saved_dtypes(recipe):
        # Without the weights, the config is the only source.
        most_common = next(iter(facts.load_dtypes), facts.main_dtype)
        return next((dtype for dtype in DTYPE_BYTES if dtype == most_common), mode.weights)
    requested = recipe.adapter.base_dtype
    return next((dtype for dtype in DTYPE_BYTES if dtype == requested), mode.weights)


def recipe_keeps_saved_dtypes(recipe: AnyRecipe) -> bool:
    return keeps_saved_dtypes(recipe.adapter, PRECISIONS[recipe.precision])


def count_by_dtype(recipe: AnyRecipe, facts: ModelFacts) -> Mapping[DType, int]:
    """Return how many weights are loaded in each dtype, before any is quantised."""
    if recipe_keeps_saved_dtypes(recipe) and facts.load_dtypes:
        return facts.load_dtypes
    return {weight_dtype(recipe, facts): facts.parameters}


def hidden_state_dtype(recipe: AnyRecipe, facts: ModelFacts) -> DType:
    """Return the dtype of the hidden states between layers: that of the token embeddings."""
    if isinstance(recipe.adapter, Adapter) and recipe.adapter.trained.has_embeddings:
        return "float32"
    embedding_dtype = facts.embedding_dtype if recipe_keeps_saved_dtypes(recipe) else None
    return embedding_dtype or weight_dtype(recipe, facts)


def rounding_on_load(recipe: AnyRecipe, facts: ModelFacts) -> CastRounding | None:
    """Return what loading the base model rounds, except for what is quantised."""
    return facts.rounding_to(
        weight_dtype(recipe, facts),
        keeps_own=recipe_keeps_saved_dtypes(recipe),
        is_quantised=recipe.adapter.quantised is not None,
    )


def trained_dtype(recipe: AnyRecipe, facts: ModelFacts) -> DType:
    """Return the dtype of the trained weights.

    Peft creates adapters in float32, whatever the dtype of the base model.

    """
    return "float32" if isinstance(recipe.adapter, Adapter) else weight_dtype(recipe, facts)


def stalled_share(recipe: AnyRecipe, facts: ModelFacts) -> float:
    """Return the share of the weights that updates do not change, because rounding undoes them.

    It is 0 if a master copy or another rounding keeps what is rounded away.
    """
    mode = PRECISIONS[recipe.precision]
    is_plain = mode.rounding == "nearest" and mode.master is None
    if trained_dtype(recipe, facts) != "bfloat16" or not is_plain:
        return 0.0
    return facts.stalled_share(recipe.optimisation.learning_rate)


def _trained_parameters(recipe: AnyRecipe, facts: ModelFacts) -> int:
    """Return the number of trained parameters, of the model itself and of an adapter."""
    part = recipe.trained
    if part.is_everything or not facts.weights:
        own = facts.parameters if part.is_everything else 0
    else:
        own = sum(weight.size for weight in part.select(facts.weights))
    return own + sum(_row_sizes(recipe, facts)) + _adapter_parameters(recipe, facts)


def _row_sizes(recipe: AnyRecipe, facts: ModelFacts) -> Iterator[int]:
    """Yield the sizes of the rows of new tokens, if only these are trained of a table."""
    part, width = recipe.trained, facts.shape.hidden_size if facts.shape else 0
    for _table in part.row_tables(facts.weights):
        yield part.new_tokens * width


def _adapter_parameters(recipe: AnyRecipe, facts: ModelFacts) -> int:
    """Return the number of parameters of an adapter."""
    match recipe.adapter:
        case Lora(r=rank, lora_variant=variant, targets=AdapterTargets(is_everything=True)):
            magnitudes = facts.linear_rows if variant.trains_magnitudes else 0
            return rank * facts.linear_features + magnitudes
        case adapter:
            return sum(_adapter_sizes(adapter, facts))


def _adapter_sizes(adapter: AnyAdapter, facts: ModelFacts) -> Iterator[int]:
    """Yield the sizes of the weights of an adapter."""
    if isinstance(adapter, Adapter):
        for layer in adapter.targets.select(facts.linear_layers):
            yield from adapter.weight_sizes(layer)


def _memory_sizes(recipe: AnyRecipe, facts: ModelFacts) -> MemorySizes:
    mode = PRECISIONS[recipe.precision]
    parameters = _trained_parameters(recipe, facts)
    if isinstance(recipe.adapter, Adapter):
        return MemorySizes(
            weights=_base_bytes(recipe, facts),
            adapter=parameters * DTYPE_BYTES["float32"],
            gradients=parameters * DTYPE_BYTES["float32"],
            optimizer=_optimizer_bytes(recipe, facts, "float32"),
            copies=_autocast_copies(recipe, facts),
            compensation=0,
        )
    return MemorySizes(
        weights=facts.parameters * DTYPE_BYTES[mode.weights],
        adapter=0,
        gradients=parameters * DTYPE_BYTES[mode.gradients],
        optimizer=_optimizer_bytes(recipe, facts, mode.optimizer_states),
        copies=_autocast_copies(recipe, facts),
        compensation=parameters * _compensation_bytes(mode),
    )


def _base_bytes(recipe: AnyRecipe, facts: ModelFacts) -> int:
    """Return the bytes of the base model under an adapter."""
    row, width = recipe.adapter.quantised, DTYPE_BYTES[weight_dtype(recipe, facts)]
    if row is None:
        return sum(
            count * DTYPE_BYTES[dtype] for dtype, count in count_by_dtype(recipe, facts).items()
        )
    narrow = facts.linear_parameters * row.bytes_per_weight + facts.linear_rows * row.bytes_per_row
    return round(narrow) + (facts.parameters - facts.linear_parameters) * width


def _optimizer_bytes(recipe: AnyRecipe, facts: ModelFacts, states: DType) -> int:
    """Return the bytes of what the optimizer keeps; a mode may have its own AdamW."""
    parameters, width = _trained_parameters(recipe, facts), DTYPE_BYTES[states]
    if PRECISIONS[recipe.precision].rounding is not None:
        return parameters * _ADAM_STATES * width
    row = OPTIMIZERS[recipe.optimisation.optim]
    if row.has_8bit_states:
        narrow = sum(_sizes_in_8bit(recipe, facts))
        in_8bit = row.states * narrow * (1 + DTYPE_BYTES["float32"] / BLOCK)
        return round(in_8bit) + row.states * (parameters - narrow) * width
    matrices = _trained_matrices(recipe, facts) if row.is_for_matrices else 0
    return (parameters * row.states - matrices) * width


def _sizes_in_8bit(recipe: AnyRecipe, facts: ModelFacts) -> Iterator[int]:
    """Yield the sizes of trained weights whose optimizer states are in 8 bits."""
    own = (w.size for w in recipe.adapter.trained.select(facts.weights) if not w.is_table)
    adapter = _adapter_sizes(recipe.adapter, facts)
    yield from (size for size in chain(own, adapter) if size >= MIN_8BIT_SIZE)


def _trained_matrices(recipe: AnyRecipe, facts: ModelFacts) -> int:
    """Return the number of trained parameters in the matrices of the layers."""
    layers = AdapterTargets(last_layers=recipe.adapter.trained.last_layers)
    return sum(layer.outputs * layer.inputs for layer in layers.select(facts.linear_layers))


def _autocast_copies(recipe: AnyRecipe, facts: ModelFacts) -> int:
    """Return the bytes of the linear layers' casts that autocast keeps until the backward pass."""
    mode = PRECISIONS[recipe.precision]
    stored = facts.linear_load_dtypes if recipe_keeps_saved_dtypes(recipe) else {}
    linear = stored or {weight_dtype(recipe, facts): facts.linear_parameters}
    base = sum(count * _copy_bytes(mode, dtype) for dtype, count in linear.items())
    # Nothing is kept of the layers before the first that is trained.
    base = round(base * backward_share(recipe, facts))
    if not isinstance(recipe.adapter, Adapter):
        return base
    return base + _adapter_parameters(recipe, facts) * _copy_bytes(mode, "float32")


def backward_share(recipe: AnyRecipe, facts: ModelFacts) -> float:
    """Return the share of the decoder layers that the backward pass goes through."""
    match recipe.adapter:
        case Adapter(targets=targets):
            last = targets.last_layers
        case FullFineTune(trained=part):
            last = part.last_layers
    if recipe.trained.reaches_first_layer:
        return 1.0
    layers = facts.shape.layers if facts.shape else 0
    return min(last / layers, 1.0) if last is not None and layers else 1.0


def _copy_bytes(mode: Precision, trained: DType) -> int:
    if mode.is_float8:
        # Each product scales and casts the weight itself (torchao's Float8Linear) and frees it.
        return 0
    return DTYPE_BYTES[mode.compute] if DTYPE_BYTES[mode.compute] < DTYPE_BYTES[trained] else 0


def _compensation_bytes(mode: Precision) -> int:
    """Return the bytes per parameter that the precision's row counts beyond the usual parts."""
    usual = (
        DTYPE_BYTES[mode.weights]
        + DTYPE_BYTES[mode.gradients]
        + DTYPE_BYTES[mode.optimizer_states] * _ADAM_STATES
        + _copy_bytes(mode, mode.weights)
    )
    return max(0, mode.bytes_per_parameter - usual)
