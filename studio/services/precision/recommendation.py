"""The recommended precision for a model on this machine, and warnings about the chosen one."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from sqlmodel import Session

from studio.errors import InvalidError
from studio.hardware import Hardware
from studio.methods import AnyRecipe
from studio.recipe.precision import AMPERE, AUTO, PRECISIONS, VOLTA, DType, Precision
from studio.services.models import models
from studio.services.precision.incompatibilities import (
    MAX_STALLED_SHARE,
    check_precision,
    join_names,
)
from studio.services.precision.number_formats import (
    rounding_on_load,
    stalled_share,
    trained_dtype,
    weight_dtype,
)
from studio.services.workers import workers
from studio.weights import family_limits
from studio.weights import model_facts as weights
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
    if cast.stored == ("float64",):
        stored += f" ({join_names(facts.float64_layers)})"
    rounded = f"{cast.weights:,} weights stored in {stored} are rounded to {cast.to}"
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
    names = join_names(tuple(layers))
    summary = f"{count:,} weights of this model are NaN or infinite, in {names}"
    if count == 1:
        summary = f"1 weight of this model is NaN or infinite, in {names}"
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
    share, rate = stalled_share(recipe, facts), recipe.optimisation.learning_rate
    mode = PRECISIONS[recipe.precision]
    if not MIN_SHARE <= share < MAX_STALLED_SHARE:  # more is refused
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


NO_WORKER_NOTE = "No worker is connected yet, so this assumes the machine that serves these pages."

_NO_TENSOR_CORES = "GeForce GTX 16"
"""GPUs that report as Turing but lack its float16 units; float16 was seen to give NaN on them."""


BOTH: frozenset[DType] = frozenset({"bfloat16", "float16"})
BFLOAT16: frozenset[DType] = frozenset({"bfloat16"})
FLOAT16: frozenset[DType] = frozenset({"float16"})
NEITHER: frozenset[DType] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """The compute dtype, given what the hardware is fast in and how the model was saved."""

    fast: frozenset[DType]
    """Exactly the 16-bit formats that the hardware multiplies natively."""
    saved: DType | None = None
    """The dtype most weights are stored in; None matches any."""
    adapter: Literal["adapter", "full"] | None = None
    compute: DType
    reason: str
    """Text for users; `{hardware}` is the machine."""

    def applies(self, recipe: AnyRecipe, facts: ModelFacts, fast: frozenset[DType]) -> bool:
        return (
            self.fast == fast
            and self.saved in (None, facts.main_dtype)
            and self.adapter in (None, "full" if recipe.adapter.kind == "full" else "adapter")
        )


_NATIVE_RANGE = "native on {hardware}, with float32's range"
_AS_SAVED = "the weights are bfloat16, and {hardware} is fast in it"

RULES = (
    # https://github.com/zai-org/CogVideo: a model trained in float16 runs best in float16.
    Rule(
        fast=BOTH,
        saved="float16",
        compute="float16",
        reason="the weights are float16, {hardware} is fast in it, and bfloat16 would drop three "
        "bits of precision",
    ),
    Rule(fast=BOTH, saved="bfloat16", compute="bfloat16", reason=_AS_SAVED),
    Rule(fast=BOTH, compute="bfloat16", reason=_NATIVE_RANGE),
    Rule(
        fast=BFLOAT16,
        saved="float16",
        compute="bfloat16",
        reason="{hardware} is fast in bfloat16 but not in float16, although matrix products drop "
        "three bits of precision of these float16 weights",
    ),
    Rule(fast=BFLOAT16, saved="bfloat16", compute="bfloat16", reason=_AS_SAVED),
    Rule(fast=BFLOAT16, compute="bfloat16", reason=_NATIVE_RANGE),
    Rule(
        fast=FLOAT16,
        saved="float16",
        compute="float16",
        reason="the weights are float16, and {hardware} is fast in it",
    ),
    Rule(
        fast=FLOAT16,
        saved="bfloat16",
        adapter="adapter",
        compute="float16",
        reason="{hardware} is fast in float16 and lacks bfloat16, and float32 would double the "
        "memory of the frozen model; a model saved in bfloat16 may overflow float16, so watch for "
        "skipped steps",
    ),
    Rule(
        fast=FLOAT16,
        saved="bfloat16",
        adapter="full",
        compute="float32",
        reason="{hardware} lacks bfloat16, and a model saved in bfloat16 may overflow float16; "
        "full fine-tuning keeps weights in float32 anyway, so float16 would save little memory",
    ),
    Rule(
        fast=FLOAT16, compute="float16", reason="{hardware} is fast in float16 and lacks bfloat16"
    ),
    Rule(
        fast=NEITHER, compute="float32", reason="{hardware} is fast in neither bfloat16 nor float16"
    ),
)
"""The recommendation is the first rule that applies, unless the model rules it out.

The saved dtype does not prove which one a model was trained in, but no more bits exist: a narrower
mantissa loses some of them, and a narrower range may overflow.

"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    mode: Precision
    """The recommended precision."""
    sentence: str
    """Why, with evidence."""
    warnings: tuple[str, ...]
    """Warnings about the recipe as it is."""


@dataclass(frozen=True, slots=True)
class ResolvedRecipe:
    """A recipe with a definite precision."""

    recipe: AnyRecipe
    reason: str
    """Why the studio chose the precision; empty if the recipe names one."""


def resolve_precision(db: Session, recipe: AnyRecipe) -> ResolvedRecipe:
    """Replace an `auto` precision in a recipe with the recommended one.

    Raises:
        InvalidError: the model does not exist, or its files cannot be read.

    """
    if recipe.precision != AUTO:
        return ResolvedRecipe(recipe, "")
    recommendation = recommend_for_machine(db, recipe, load_model_facts(db, recipe.base_model))
    return ResolvedRecipe(_with_mode(recipe, recommendation.mode), recommendation.sentence)


def load_model_facts(db: Session, name: str) -> ModelFacts:
    """Return the facts of a recipe's base model; for a hub model, only what is cached.

    Raises:
        InvalidError: the model does not exist, or its files cannot be read.

    """
    try:
        location = models.require(db, name)
        return (
            read_model_facts(Path(location))
            if Path(location).is_absolute()
            else _read_cached_facts(location)
        )
    except OSError as error:
        raise InvalidError(
            f"{name[:200]} cannot be read: {error.strerror}.", param="base_model"
        ) from error


def read_model_facts(folder: Path) -> ModelFacts:
    """Return the facts of a model in a folder, reading again only if a file changed."""
    stats = [(path, path.stat()) for path in weights.source_files(folder)]
    return _read_cached(
        folder, tuple((path, stat.st_mtime_ns, stat.st_size) for path, stat in stats)
    )


def recommend(recipe: AnyRecipe, facts: ModelFacts, hardware: Hardware) -> Recommendation:
    """Recommend a precision, with warnings about the chosen one."""
    mode, reason = _choose_mode(recipe, facts, hardware)
    resolved = _with_mode(recipe, mode) if recipe.precision == AUTO else recipe
    return Recommendation(
        mode=mode,
        sentence=f"{mode.title}: {reason}.",
        warnings=tuple(list_warnings(resolved, facts)),
    )


def recommend_for_machine(db: Session, recipe: AnyRecipe, facts: ModelFacts) -> Recommendation:
    """Recommend a precision for the machine that will train."""
    recommendation = recommend(recipe, facts, workers.training_hardware(db))
    if workers.connected_hardware(db) is not None:
        return recommendation
    return replace(recommendation, sentence=f"{recommendation.sentence} {NO_WORKER_NOTE}")


@lru_cache(maxsize=128)
def _read_cached(folder: Path, _state: tuple[Any, ...]) -> ModelFacts:
    return weights.read(folder)


def _read_cached_facts(name: str) -> ModelFacts:
    """Return the facts of a hub model from the local cache. No network access."""
    from huggingface_hub import errors, try_to_load_from_cache  # noqa: PLC0415 -- heavy import

    try:
        config = try_to_load_from_cache(name, "config.json")
    except errors.HFValidationError as error:
        raise InvalidError(
            f"{name} is not a valid name on the hub.",
            hint="Write hub models as owner/name.",
            param="base_model",
        ) from error
    if not isinstance(config, str):
        return ModelFacts()
    try:
        return read_model_facts(Path(config).parent)
    except InvalidError:
        # An incomplete download is not an error: the run will download the rest.
        return weights.from_config(Path(config).parent)


def _choose_mode(recipe: AnyRecipe, facts: ModelFacts, hardware: Hardware) -> tuple[Precision, str]:
    """Return the first candidate that is not ruled out."""
    for compute, reason in _candidates(recipe, facts, hardware):
        mode = next(
            candidate
            for candidate in PRECISIONS.values()
            if candidate.is_common and candidate.compute == compute
        )
        if not check_precision(_with_mode(recipe, mode), facts, hardware):
            return mode, reason
    return PRECISIONS["fp32"], "no other format can hold these weights"


def _candidates(
    recipe: AnyRecipe, facts: ModelFacts, hardware: Hardware
) -> Iterator[tuple[DType, str]]:
    """Yield compute dtypes, best first, each with its reason."""
    fast, evidence = fast_formats(hardware), _weights_evidence(facts)
    rule = next(rule for rule in RULES if rule.applies(recipe, facts, fast))
    overflow = family_limits.FLOAT16_OVERFLOWS.get(facts.family)
    if rule.compute != "float16" or overflow is None:
        yield rule.compute, rule.reason.format(hardware=hardware.title) + evidence
    if "bfloat16" in fast:
        yield "bfloat16", _NATIVE_RANGE.format(hardware=hardware.title) + evidence
    yield "float32", f"{_reason_against_16_bits(facts, hardware)}{evidence}"


def _with_mode(recipe: AnyRecipe, mode: Precision) -> AnyRecipe:
    return recipe.model_copy(update={"precision": mode.name})


def fast_formats(hardware: Hardware) -> frozenset[DType]:
    """Return the 16-bit formats that the hardware multiplies natively, without emulation."""
    if hardware.device == "cpu":
        ratio = hardware.product_times.get("bfloat16")
        is_fast = hardware.native_bf16 if ratio is None else ratio < 1
        return BFLOAT16 if is_fast else NEITHER
    if hardware.capability >= AMPERE:
        return BOTH
    has_units = all(_NO_TENSOR_CORES not in gpu.name for gpu in hardware.gpus)
    return FLOAT16 if hardware.capability >= VOLTA and has_units else NEITHER


def _reason_against_16_bits(facts: ModelFacts, hardware: Hardware) -> str:
    """Return why a run cannot use 16 bits."""
    if facts.mixed_float64:
        return "some layers are stored in float64"
    fast, overflow = fast_formats(hardware), family_limits.FLOAT16_OVERFLOWS.get(facts.family)
    if fast == FLOAT16 and overflow:
        return (
            f"{hardware.title} lacks bfloat16, and in float16 {overflow.reason} ({overflow.source})"
        )
    return "the weights do not suit 16 bits"


def _weights_evidence(facts: ModelFacts) -> str:
    """Return the evidence from the weights."""
    largest = facts.stats.largest
    if not facts.has_weights or largest is None:
        return ""
    evidence = f"weights are {facts.main_dtype}, the largest sampled is {largest:.3g}"
    return f" ({evidence})"
