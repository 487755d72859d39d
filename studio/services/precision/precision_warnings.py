"""Warnings about a recipe that can run: what its precision does to this model's weights."""

from collections.abc import Callable, Iterator

from studio.methods import AnyRecipe
from studio.recipe.precision import PRECISIONS
from studio.services.precision.incompatibilities import join_names
from studio.services.precision.number_formats import rounding_on_load, trained_dtype, weight_dtype
from studio.weights import family_limits
from studio.weights.model_facts import ModelFacts

MIN_SHARE = 0.005
"""Smaller shares of the weights are not worth a warning."""


def list_warnings(recipe: AnyRecipe, facts: ModelFacts) -> Iterator[str]:
    """Yield one sentence per warning, most serious first."""
    for warning in _WARNINGS:
        if message := warning(recipe, facts):
            yield message


def _weights_unavailable(_recipe: AnyRecipe, facts: ModelFacts) -> str:
    if facts.has_weights:
        return ""
    if facts.family:
        return (
            f"Only the config of this {facts.family} model is on this machine: its weights could "
            "not be checked."
        )
    return "This model could not be checked: its files are not on this machine yet."


def _config_disagrees(_recipe: AnyRecipe, facts: ModelFacts) -> str:
    if not facts.has_dtype_mismatch:
        return ""
    return (
        f"The config says {facts.declared_dtype}, but the weights are {facts.main_dtype}: "
        "trust the weights."
    )


def _mixed_dtypes(_recipe: AnyRecipe, facts: ModelFacts) -> str:
    if len(facts.stored) < 2:  # noqa: PLR2004 -- mixed means at least two
        return ""
    shares = ", ".join(f"{_percent(share)} {name}" for name, share in facts.stored.items())
    return f"The weights are stored in several formats: {shares}."


def _rounding_on_load(recipe: AnyRecipe, facts: ModelFacts) -> str:
    """Warn about rounding while loading. Formats too narrow for some layers are refused earlier."""
    cast = rounding_on_load(recipe, facts)
    if cast is None:
        return ""
    stored = " and ".join(cast.stored)
    layers = f" ({join_names(facts.float64_layers)})" if cast.stored == ("float64",) else ""
    rounded = f"{cast.weights:,} weights stored in {stored}{layers} are rounded to {cast.to}"
    if not cast.changed:
        return f"{rounded} on loading; none of {cast.sampled:,} sampled weights changes."
    return (
        f"{rounded} on loading: of {cast.sampled:,} sampled weights, "
        f"{100 * cast.changed:.3g} % change, by {100 * cast.mean_relative_change:.2g} % on average "
        f"and {100 * cast.max_relative_change:.2g} % at most."
    )


def _non_finite_weights(_recipe: AnyRecipe, facts: ModelFacts) -> str:
    layers = facts.defects.not_finite
    if not layers:
        return ""
    count = sum(layers.values())
    summary = f"{count:,} weights of this model are NaN or infinite, in {join_names(tuple(layers))}"
    return (
        f"{summary}: a run would fail before its first step. Download it again or choose another."
    )


def _zero_weights(_recipe: AnyRecipe, facts: ModelFacts) -> str:
    layers = facts.defects.all_zero
    if not layers:
        return ""
    return (
        f"All zeros: {join_names(layers)}. The file may be incomplete; compare its size or "
        "checksum."
    )


def _float16_risk(recipe: AnyRecipe, facts: ModelFacts) -> str:
    """Warn about float16 if it is risky rather than impossible."""
    if PRECISIONS[recipe.precision].compute != "float16":
        return ""
    overflow = family_limits.FLOAT16_OVERFLOWS.get(facts.family)
    if overflow is not None and not overflow.is_certain:
        return f"{facts.family} is risky in float16: {overflow.reason} ({overflow.source})."
    if facts.main_dtype == "bfloat16":
        return (
            "Most models stored in bfloat16 were trained in it and often overflow float16: "
            "watch for skipped steps."
        )
    return ""


def _quantisation_error(recipe: AnyRecipe, facts: ModelFacts) -> str:
    row = recipe.adapter.quantised
    if row is None or row.name not in facts.quantisation_errors:
        return ""
    return (
        f"{row.title} changes weights by "
        f"{100 * facts.quantisation_errors[row.name]:.2g} % of their size (root mean square over "
        "a sample of this model's weights): it starts slightly worse than the saved model."
    )


def _float16_underflow(recipe: AnyRecipe, facts: ModelFacts) -> str:
    share = facts.stats.below_float16
    if (
        weight_dtype(recipe, facts) != "float16"
        or facts.main_dtype == "float16"
        or share < MIN_SHARE
    ):
        return ""
    return f"{_percent(share)} of the weights are too small for float16 and become zero."


def _stalled_updates(recipe: AnyRecipe, facts: ModelFacts) -> str:
    """Warn about weights too large to change; compensated rounding or a master copy avoids that."""
    mode = PRECISIONS[recipe.precision]
    is_plain = mode.rounding == "nearest" and mode.master is None
    if trained_dtype(recipe, facts) != "bfloat16" or not is_plain:
        return ""
    rate = recipe.optimisation.learning_rate
    share = facts.stalled_share(rate)
    if share < MIN_SHARE:
        return ""
    return (
        f"{_percent(share)} of weights would not change at a learning rate of {rate:g} in "
        f"{mode.title}: choose a higher rate, or a precision that compensates for rounding."
    )


def _lost_mantissa_bits(recipe: AnyRecipe, facts: ModelFacts) -> str:
    if facts.main_dtype != "float16" or PRECISIONS[recipe.precision].compute != "bfloat16":
        return ""
    return (
        "The weights are float16: computing in bfloat16 is safe but drops three bits of precision."
    )


def _needs_float32_parameters(recipe: AnyRecipe, facts: ModelFacts) -> str:
    source = family_limits.FLOAT32_PARAMETERS.get(facts.family)
    if source is None or trained_dtype(recipe, facts) == "float32":
        return ""
    return f"{facts.family} models need their parameters in float32 ({source})."


def _percent(share: float) -> str:
    return f"{share * 100:.1f} %"


_WARNINGS: tuple[Callable[[AnyRecipe, ModelFacts], str], ...] = (
    _weights_unavailable,
    _non_finite_weights,
    _zero_weights,
    _stalled_updates,
    _float16_risk,
    _float16_underflow,
    _needs_float32_parameters,
    _quantisation_error,
    _config_disagrees,
    _mixed_dtypes,
    _rounding_on_load,
    _lost_mantissa_bits,
)
