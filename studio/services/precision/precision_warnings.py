"""What to know of a recipe that can run: what its precision will do to this model's weights."""

from collections.abc import Callable, Iterator

from studio.methods import AnyRecipe
from studio.recipe.precision import PRECISIONS
from studio.services.precision.incompatibilities import join_names
from studio.services.precision.number_formats import rounding_on_load, trained_dtype, weight_dtype
from studio.weights import family_limits
from studio.weights.model_facts import ModelFacts

MIN_SHARE = 0.005
"""Smaller shares of the weights are not worth a sentence."""


def list_warnings(recipe: AnyRecipe, facts: ModelFacts) -> Iterator[str]:
    """Tell each caution in a sentence, the gravest first."""
    for caution in _WARNINGS:
        if said := caution(recipe, facts):
            yield said


def _weights_unavailable(_recipe: AnyRecipe, facts: ModelFacts) -> str:
    if facts.has_weights:
        return ""
    if facts.family:
        return (
            f"Only the config of this {facts.family} model is at hand: nothing is known of its "
            "weights."
        )
    return "Nothing is known of this model yet: its files are not on this machine."


def _config_disagrees(_recipe: AnyRecipe, facts: ModelFacts) -> str:
    if not facts.disagrees:
        return ""
    return f"The config says {facts.declared}, the weights are {facts.native}: believe the weights."


def _mixed_dtypes(_recipe: AnyRecipe, facts: ModelFacts) -> str:
    if len(facts.stored) < 2:  # noqa: PLR2004 -- two make a mixture
        return ""
    shares = ", ".join(f"{_percent(share)} {name}" for name, share in facts.stored.items())
    return f"The weights are stored in several formats: {shares}."


def _rounding_on_load(recipe: AnyRecipe, facts: ModelFacts) -> str:
    """Say what loading rounds. A format too narrow for some layers is refused before."""
    cast = rounding_on_load(recipe, facts)
    if cast is None:
        return ""
    stored = " and ".join(cast.stored)
    layers = f" ({join_names(facts.float64_layers)})" if cast.stored == ("float64",) else ""
    what = f"{cast.weights:,} weights stored in {stored}{layers} are rounded to {cast.to}"
    if not cast.changed:
        return f"{what} when they are loaded; none of a sample of {cast.sampled:,} changes."
    return (
        f"{what} when they are loaded: in a sample of {cast.sampled:,}, "
        f"{100 * cast.changed:.3g} % change, by {100 * cast.mean_relative_change:.2g} % on average "
        f"and {100 * cast.max_relative_change:.2g} % at most."
    )


def _non_finite_weights(_recipe: AnyRecipe, facts: ModelFacts) -> str:
    found = facts.broken.not_finite
    if not found:
        return ""
    count = sum(found.values())
    where = f"{count:,} weights of this model are NaN or infinite, in {join_names(tuple(found))}"
    return f"{where}: a run ends before its first step. Get the model again, or choose another."


def _zero_weights(_recipe: AnyRecipe, facts: ModelFacts) -> str:
    found = facts.broken.blank
    if not found:
        return ""
    return f"All zeros: {join_names(found)}. The file may not be whole; compare its size or hash."


def _float16_risk(recipe: AnyRecipe, facts: ModelFacts) -> str:
    """Warn of float16 where it is doubtful rather than impossible."""
    if PRECISIONS[recipe.precision].compute != "float16":
        return ""
    known = family_limits.FLOAT16_OVERFLOWS.get(facts.family)
    if known is not None and not known.is_certain:
        return f"{facts.family} in float16 is doubtful: {known.reason} ({known.source})."
    if facts.native == "bfloat16":
        return (
            "Models stored in bfloat16 were mostly trained in it, and often overflow float16: "
            "watch for skipped steps."
        )
    return ""


def _quantisation_error(recipe: AnyRecipe, facts: ModelFacts) -> str:
    row = recipe.adapter.quantised
    if row is None or row.name not in facts.quantisation_errors:
        return ""
    return (
        f"{row.title} moves weights by "
        f"{100 * facts.quantisation_errors[row.name]:.2g} % of their size (root "
        "mean square over a sample of this model's): it starts a little worse than it was saved."
    )


def _float16_underflow(recipe: AnyRecipe, facts: ModelFacts) -> str:
    share = facts.stats.below_float16
    if weight_dtype(recipe, facts) != "float16" or facts.native == "float16" or share < MIN_SHARE:
        return ""
    return f"{_percent(share)} of the weights are smaller than float16 can hold, and become zero."


def _stalled_updates(recipe: AnyRecipe, facts: ModelFacts) -> str:
    """Predict which weights stand still: a repaired rounding or a master copy lets all move."""
    mode = PRECISIONS[recipe.precision]
    is_plain = mode.rounding == "nearest" and mode.master is None
    if trained_dtype(recipe, facts) != "bfloat16" or not is_plain:
        return ""
    rate = recipe.optimisation.learning_rate
    share = facts.stalled_share(rate)
    if share < MIN_SHARE:
        return ""
    return (
        f"{_percent(share)} of weights would not move at a learning rate of {rate:g} in "
        f"{mode.title}: choose a higher rate, or a mode that repairs the rounding."
    )


def _lost_mantissa_bits(recipe: AnyRecipe, facts: ModelFacts) -> str:
    if facts.native != "float16" or PRECISIONS[recipe.precision].compute != "bfloat16":
        return ""
    return "The weights are float16: computing in bfloat16 is safe, but drops three of their bits."


def _needs_float32_parameters(recipe: AnyRecipe, facts: ModelFacts) -> str:
    source = family_limits.FLOAT32_PARAMETERS.get(facts.family)
    if source is None or trained_dtype(recipe, facts) == "float32":
        return ""
    return f"{facts.family} models want their parameters in float32 ({source})."


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
