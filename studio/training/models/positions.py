"""Stretch the rotary positions of a model, so that it reads texts longer than it was made for.

The config gets upstream's `rope_parameters`. Saved with the model, it says how the model computes.
"""

from transformers import PreTrainedConfig

from studio.errors import TrainingError
from studio.recipe.model_options import RopeType

_KEEPS_ORIGINAL: tuple[RopeType, ...] = ("yarn", "llama3")
"""Types whose parameters name the original length."""
_OWN_PARAMETERS: dict[RopeType, dict[str, float]] = {
    "llama3": {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
}
"""What a type needs besides: those of Llama 3.1."""
_STRETCHES_AT_ONCE: tuple[RopeType, ...] = ("linear", "yarn", "llama3")
"""Types for which upstream expects the new length in the config; dynamic needs the original."""


def stretch(config: PreTrainedConfig, rope_type: RopeType, factor: float) -> None:
    """Stretch the positions of models of this config by a factor.

    Raises:
        TrainingError: its positions are not rotary, differ by layer, or are stretched already.

    """
    if rope_type == "none":
        return
    found = dict(getattr(config, "rope_parameters", None) or {})
    if problem := _find_problem(config, found):
        raise TrainingError("conflict", problem, hint="Choose no longer context.")
    length = config.max_position_embeddings
    own = _OWN_PARAMETERS.get(rope_type, {})
    parameters = {**found, "rope_type": rope_type, "factor": float(factor), **own}
    if rope_type in _KEEPS_ORIGINAL:
        parameters["original_max_position_embeddings"] = length
    config.rope_parameters = parameters
    if rope_type in _STRETCHES_AT_ONCE:
        config.max_position_embeddings = round(length * factor)


def _find_problem(config: PreTrainedConfig, found: dict[str, object]) -> str:
    family = config.model_type
    if not found:
        return f"{family} models have no rotary positions that could be stretched."
    if any(isinstance(value, dict) for value in found.values()):
        return f"{family} models have different positions in different layers."
    kind = found.get("rope_type", "default")
    if kind != "default" or hasattr(config, "original_max_position_embeddings"):
        return f"The positions of this model are stretched already ({kind})."
    return ""
