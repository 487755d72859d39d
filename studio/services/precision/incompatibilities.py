"""Why a precision cannot train a model here, and the one change that would make it work.

A rule reads the fields of the precision's row, the facts of the model and the hardware, never the
name of a mode: a new row is judged by its fields.

"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from studio.hardware import Hardware
from studio.methods import METHODS, RECIPE_ADAPTER, AnyRecipe, model_compatibility
from studio.recipe.adapters import Adapter, FullFineTune, Lora, Oft
from studio.recipe.attention import ATTENTIONS
from studio.recipe.base import find_conflict
from studio.recipe.dotted_keys import flatten, merge
from studio.recipe.offloading import OFFLOADING
from studio.recipe.optimizers import OPTIMIZERS
from studio.recipe.precision import PRECISIONS, Precision
from studio.services.precision.number_formats import (
    DTYPE_BYTES,
    count_by_dtype,
    stalled_share,
    weight_dtype,
)
from studio.weights import architectures, family_limits, weight_samples
from studio.weights.adapter_targets import find_unrotatable
from studio.weights.family_limits import FAMILY_LAYERS
from studio.weights.model_facts import FLOAT8_MULTIPLE, ModelFacts

MAX_STALLED_SHARE = 0.99
"""From this share of weights that updates do not change on, training is a waste of time."""

MAX_NAMED = 3
"""How many layers a message names; the others are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a recipe cannot run, in one sentence, and the change of the recipe that fixes it."""

    message: str
    hint: str
    param: str = "base_model"
    """The dotted name of the field to change."""
    repair: dict[str, Any] = field(default_factory=dict)
    """Values that override the recipe's; empty if no fix is known."""
    link: str = ""
    """The page where it can be fixed, if it is not a field of the recipe."""


@dataclass(frozen=True, slots=True)
class _Case:
    """The input of a rule."""

    recipe: AnyRecipe
    facts: ModelFacts
    hardware: Hardware

    @property
    def mode(self) -> Precision:
        return PRECISIONS[self.recipe.precision]


_Rule = Callable[[_Case], str]
"""Returns what is wrong, in one sentence, or an empty string."""


def check(recipe: AnyRecipe, facts: ModelFacts, hardware: Hardware) -> list[Refusal]:
    """Return why the recipe cannot run, worst first; empty if it can."""
    method = METHODS[recipe.method]
    if message := model_compatibility.untrainable_reason(facts.kind, facts.family, [method]):
        # No precision would fix this, so other problems do not matter.
        hint = architectures.model_hint(facts.kind, method.trainable_kinds)
        return [Refusal(message=message, hint=hint)]
    return check_precision(recipe, facts, hardware)


def check_precision(recipe: AnyRecipe, facts: ModelFacts, hardware: Hardware) -> list[Refusal]:
    """Return why the recipe's number formats cannot train this model on this hardware."""
    messages = list(_problems(_Case(recipe, facts, hardware)))
    if not messages:
        return []
    for hint, change in _candidate_changes(recipe):
        changed = RECIPE_ADAPTER.validate_python(merge(recipe.model_dump(), change))
        if not any(_problems(_Case(changed, facts, hardware))):
            param = next(iter(flatten(change)))
            return [
                Refusal(message=message, hint=hint, param=param, repair=change)
                for message in messages
            ]
    return [Refusal(message=message, hint="Choose another model.") for message in messages]


def _problems(case: _Case) -> Iterator[str]:
    conflict = find_conflict(case.recipe)
    if conflict is not None:
        yield conflict.message
    for rule in _RULES:
        if message := rule(case):
            yield message


def _candidate_changes(recipe: AnyRecipe) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield changes, smallest first; common precisions before others."""
    yield "Choose no longer context.", {"model": {"rope_type": "none"}}
    yield "Leave the new tokens empty.", {"model": {"new_tokens": None}}
    yield "Choose automatic attention.", {"model": {"attention": "automatic"}}
    rate = {"optimisation": {"embedding_learning_rate": None}}
    yield "Leave the embedding learning rate empty.", rate
    yield "Use AdamW.", {"optimisation": {"optim": "adamw_torch_fused"}}
    offloading = {"optimisation": {"activation_offloading": False}}
    yield "Turn off activation offloading.", offloading
    if isinstance(recipe.adapter, Adapter):
        if recipe.adapter.extra_modules == "output":
            yield "Train the embeddings, too.", {"adapter": {"extra_modules": "embeddings"}}
        yield "Train nothing besides the adapter.", {"adapter": {"extra_modules": "none"}}
        yield from _own_changes(recipe.adapter)
        yield "Leave module names empty.", {"adapter": {"module_names": None}}
        everything = {"target_modules": "all-linear", "module_names": None, "last_layers": None}
        yield "Target all linear layers.", {"adapter": everything}
        for dtype in ("native", "bfloat16", "float32"):
            yield f"Keep the frozen model in {dtype}.", _base_dtype_change(dtype)
    else:
        yield "Train the embeddings, too.", {"adapter": {"also_trained": "embeddings"}}
        everything = {"trained_layers": None, "also_trained": "none"}
        yield "Train every weight.", {"adapter": everything}
    modes = sorted(PRECISIONS.values(), key=lambda one: not one.is_common)
    for mode in modes:
        yield f"Use {mode.title}.", {"precision": mode.name}
    if isinstance(recipe.adapter, Adapter):
        for mode in modes:
            change = {"precision": mode.name} | _base_dtype_change("native")
            yield f"Use {mode.title} and keep the frozen model in its own format.", change


def _own_changes(adapter: Adapter) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield changes of settings that only this kind of adapter has."""
    if isinstance(adapter, Lora):
        yield "Choose plain LoRA.", {"adapter": {"variant": "plain"}}
    if isinstance(adapter, Oft):
        for size in (32, 16, 8):
            yield f"Use an OFT block size of {size}.", {"adapter": {"oft_block_size": size}}
    if not isinstance(adapter, Lora):
        yield "Choose a LoRA adapter.", {"adapter": {"kind": "lora"}}


def _base_dtype_change(dtype: str) -> dict[str, Any]:
    return {"adapter": {"base_dtype": dtype}}


def _hardware_lacks(case: _Case) -> str:
    reason = case.mode.unsupported_reason(case.hardware)
    return f"{case.mode.title} cannot be used here: it {reason}." if reason else ""


def _weights_overflow(case: _Case) -> str:
    stats = case.facts.stats
    if "float16" not in _dtypes_used(case) or not stats.over_float16:
        return ""
    return (
        f"{stats.over_float16:,} of {stats.sampled:,} sampled weights exceed "
        f"{weight_samples.FLOAT16_MAX:,.0f}, the largest float16 value; "
        f"the largest is {stats.largest:,.0f}." + _float16_note(case)
    )


def _float16_note(case: _Case) -> str:
    row = case.recipe.adapter.quantised
    is_passed = row is not None and row.is_made_of_float16
    return (
        f" {row.title} weights are quantised from float16." if row is not None and is_passed else ""
    )


def _family_overflows(case: _Case) -> str:
    overflow = family_limits.FLOAT16_OVERFLOWS.get(case.facts.family)
    if case.mode.compute != "float16" or overflow is None or not overflow.is_certain:
        return ""
    return (
        f"{case.facts.family} models do not train in float16: {overflow.reason} "
        f"({overflow.source})."
    )


def _mixes_float64(case: _Case) -> str:
    layers = case.facts.mixed_float64
    narrow = [name for name in _dtypes_used(case) if DTYPE_BYTES[name] < DTYPE_BYTES["float32"]]
    if not layers or not narrow:
        return ""
    consequence = f"{narrow[0]} would lose most of their precision"
    if len(layers) == 1:
        return f"{layers[0]} is stored in float64 although other layers are not, and {consequence}."
    return (
        f"{join_names(layers)} are stored in float64 although other layers are not, and "
        f"{consequence}."
    )


def _halves_clash(case: _Case) -> str:
    source = family_limits.MIXED_16BIT_UNSAFE.get(case.facts.family)
    if case.hardware.device == "cpu" and case.facts.family in architectures.LAYER_NORMS:
        source = "layer norms on a CPU"
    compute = case.mode.compute
    other_dtype = {"float16": "bfloat16", "bfloat16": "float16"}.get(compute, "")
    if source is None or other_dtype not in count_by_dtype(case.recipe, case.facts):
        return ""
    return (
        f"{case.facts.family} models cannot compute in {compute} with {other_dtype} weights "
        f"({source})."
    )


def _has_odd_sides(case: _Case) -> str:
    layers = case.facts.float8_unfit_layers
    if not layers or not case.mode.is_float8:
        return ""
    return (
        f"{case.mode.title} does not support {join_names(layers)}: 8-bit products need layers "
        f"whose dimensions are multiples of {FLOAT8_MULTIPLE}."
    )


def _moves_nothing(case: _Case) -> str:
    """Refuse updates so small that rounding undoes nearly all of them."""
    share = stalled_share(case.recipe, case.facts)
    if share < MAX_STALLED_SHARE:
        return ""
    return (
        f"At a learning rate of {case.recipe.optimisation.learning_rate:g}, {100 * share:.1f} % of "
        f"the weights would never change: {case.mode.title} rounds their updates away."
    )


def join_names(names: tuple[str, ...]) -> str:
    """Join the first few names and count the rest."""
    rest = len(names) - MAX_NAMED
    return ", ".join(names[:MAX_NAMED]) + (f" and {rest} more" if rest > 0 else "")


def _cannot_quantise(case: _Case) -> str:
    row = case.recipe.adapter.quantised
    reason = row.unsupported_reason(case.hardware) if row is not None else ""
    return f"{row.title} cannot be used here: it {reason}." if row is not None and reason else ""


def _lacks_optimizer(case: _Case) -> str:
    row = OPTIMIZERS[case.recipe.optimisation.optim]
    reason = row.unsupported_reason(case.hardware)
    return f"{row.title} cannot be used here: it {reason}." if reason else ""


def _cannot_offload(case: _Case) -> str:
    if not case.recipe.optimisation.activation_offloading:
        return ""
    reason = OFFLOADING.unsupported_reason(case.hardware)
    return f"{OFFLOADING.title} cannot be used here: it {reason}." if reason else ""


def _lacks_attention(case: _Case) -> str:
    row, family = ATTENTIONS[case.recipe.model.attention], case.facts.family
    if reason := row.unsupported_reason(case.hardware):
        return f"{row.title} cannot be used here: it {reason}."
    spec = FAMILY_LAYERS.get(family)
    if row.name == "sdpa" and spec is not None and spec.eager_attention:
        return f"{family} models softcap their attention scores, which SDPA does not support."
    return ""


def _has_odd_positions(case: _Case) -> str:
    """Refuse to stretch positions that are stretched already, or are not rotary."""
    kind, family = case.facts.rope, case.facts.family
    if case.recipe.model.rope_type == "none" or kind in ("", "default"):
        return ""
    if kind == "none":
        return f"{family} models have no rotary positions that could be stretched."
    if kind == "by_layer":
        return f"{family} models have different positions in different layers."
    return f"The positions of this model are stretched already ({kind})."


def _is_quantised_already(case: _Case) -> str:
    format_name = case.facts.quantised
    if not format_name:
        return ""
    return (
        f"This model is already quantised ({format_name}), and adapters can only be trained on "
        "models "
        "that the studio quantises itself: choose the original model."
    )


def _is_stored_packed(case: _Case) -> str:
    layers = case.facts.packed_layers
    if not layers or case.facts.quantised:
        return ""
    return (
        f"Stored in 8 bits or fewer: {join_names(layers)}. The config does not say how to read "
        "them; choose the original model."
    )


def _reads_packed(case: _Case) -> str:
    family = case.facts.family
    if family not in family_limits.NO_ADAPTER_LAYERS or case.recipe.adapter.quantised is None:
        return ""
    return (
        f"{family} models read weights without going through their layers, so they would read "
        "quantised weights in packed form."
    )


def _keeps_experts(case: _Case) -> str:
    row, facts = case.recipe.adapter.quantised, case.facts
    if row is None or not facts.expert_parameters:
        return ""
    share = facts.expert_parameters / facts.parameters
    return (
        f"{100 * share:.0f} % of this model's weights are experts, which are not linear layers and "
        f"would stay in {weight_dtype(case.recipe, facts)}: {row.title} would save almost nothing."
    )


def _rank_exceeds_weights(case: _Case) -> str:
    """Refuse an adapter of more ranks than a weight that it starts as a part of."""
    adapter, shape = case.recipe.adapter, case.facts.shape
    if not isinstance(adapter, Lora) or not adapter.lora_variant.changes_base or shape is None:
        return ""
    fused = case.facts.family in FAMILY_LAYERS and FAMILY_LAYERS[case.facts.family].fused_qkv
    narrow = shape.query_width if fused else shape.key_width
    smallest = min(shape.hidden_size, shape.intermediate, narrow)
    if adapter.r <= smallest:
        return ""
    return (
        f"{adapter.lora_variant.title} takes an adapter of rank {adapter.r} out of each weight, "
        f"and the smallest weight has rank {smallest}."
    )


def _cannot_rotate(case: _Case) -> str:
    """Refuse layers that OFT does not support, or whose inputs do not divide into its blocks."""
    adapter, family = case.recipe.adapter, case.facts.family
    if not isinstance(adapter, Oft):
        return ""
    if family in family_limits.TRANSPOSED:
        return f"OFT does not support the transposed layers of {family} models."
    return find_unrotatable(
        adapter.targets.select(case.facts.linear_layers), adapter.oft_block_size
    )


def _targets_nothing(case: _Case) -> str:
    """Refuse to train layers that the model does not have."""
    adapter, layers = case.recipe.adapter, case.facts.linear_layers
    if isinstance(adapter, FullFineTune):
        return adapter.trained.find_problem(case.facts.weights) if case.facts.weights else ""
    problem = adapter.trained.find_adapter_problem(case.facts.weights, can_tie=adapter.can_tie)
    if problem:
        return problem
    if adapter.targets.is_everything or not layers:
        return ""
    return adapter.targets.find_problem(layers)


_RULES: tuple[_Rule, ...] = (
    _hardware_lacks,
    _is_quantised_already,
    _is_stored_packed,
    _cannot_quantise,
    _lacks_optimizer,
    _cannot_offload,
    _lacks_attention,
    _has_odd_positions,
    _reads_packed,
    _keeps_experts,
    _weights_overflow,
    _family_overflows,
    _mixes_float64,
    _halves_clash,
    _has_odd_sides,
    _rank_exceeds_weights,
    _cannot_rotate,
    _targets_nothing,
    _moves_nothing,
)


def _dtypes_used(case: _Case) -> list[Any]:
    """Return the dtypes that the model's own weights are converted to."""
    row = case.recipe.adapter.quantised
    intermediate = ["float16"] if row is not None and row.is_made_of_float16 else []
    return [*count_by_dtype(case.recipe, case.facts), case.mode.compute, *intermediate]
