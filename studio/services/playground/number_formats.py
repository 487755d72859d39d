"""The number formats in which the playground loads the weights of a model."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from studio.errors import InvalidError
from studio.hardware import Hardware
from studio.recipe.precision import QUANTISED
from studio.services.chat.chat_models import ChatModel

AS_SAVED = "native"
_TITLES = {
    AS_SAVED: "As saved",
    "bfloat16": "Rounded to bfloat16",
    "float16": "Rounded to float16",
    **{name: row.title for name, row in QUANTISED.items()},
}


@dataclass(frozen=True, slots=True)
class FormatChoice:
    name: str
    """Empty for the format that the model has by default."""
    title: str
    reason: str = ""
    """Why this machine cannot use it; empty if it can."""


def list_formats(model: ChatModel, hardware: Hardware) -> list[FormatChoice]:
    """Return the formats in which a model can be loaded, its default first."""
    default = model.served.rounded_to or AS_SAVED
    return [FormatChoice("", _TITLES[default]), *_other_formats(model, default, hardware)]


def _other_formats(model: ChatModel, default: str, hardware: Hardware) -> Iterator[FormatChoice]:
    if _is_fixed(model):
        return
    for name, title in _TITLES.items():
        if name != default:
            row = QUANTISED.get(name)
            yield FormatChoice(name, title, row.unsupported_reason(hardware) if row else "")


def with_format(model: ChatModel, name: str, hardware: Hardware) -> ChatModel:
    """Return a model whose weights are loaded in a format, without its adapter.

    Raises:
        InvalidError: There is no such format, or the model or this machine does not support it.

    """
    if not name or name == (model.served.rounded_to or AS_SAVED):
        return model
    if name not in _TITLES:
        raise InvalidError(
            f"There is no number format {name[:50]}.", hint=f"Choose one of: {', '.join(_TITLES)}."
        )
    if _is_fixed(model):
        raise InvalidError(
            "A checkpoint of a full fine-tune answers only in the format it was saved in.",
            hint="Choose another format, or the final model of the run.",
        )
    row = QUANTISED.get(name)
    if row is not None and (reason := row.unsupported_reason(hardware)):
        raise InvalidError(
            f"{row.title} cannot be used here: it {reason}.", hint="Choose another format."
        )
    precision = model.served.precision or "fp32"
    served = replace(model.served, base_dtype=name, precision=precision)
    return replace(model, served=served, api="none" if model.api == "none" else "other")


def _is_fixed(model: ChatModel) -> bool:
    """Whether the weights replace those of a model that is loaded before them."""
    return bool(model.served.weights) and not model.served.has_adapter
