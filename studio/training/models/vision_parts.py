"""The parts of an image-text model that read images: which are trained, and which are frozen."""

import re
from collections.abc import Iterator
from typing import Any

from peft import PeftModel
from transformers import PreTrainedModel

from studio.recipe.images import ImageOptions
from studio.weights import image_text
from studio.weights.image_text import ImageTextFamily, VisionPart

_FROZEN = "frozen_vision_parts"


def freeze(model: PreTrainedModel, options: ImageOptions) -> None:
    """Freeze the parts that the options name, and train the others; remember which."""
    parts: dict[VisionPart, bool] = {
        "tower": options.freeze_tower,
        "projector": options.freeze_projector,
    }
    setattr(model, _FROZEN, frozenset(part for part, is_frozen in parts.items() if is_frozen))
    for name, weight in model.named_parameters():
        part = image_text.part_of(name, model.config.model_type)
        if part is not None and weight.is_floating_point():
            weight.requires_grad_(not parts[part])


def is_frozen(model: PreTrainedModel | PeftModel, path: str) -> bool:
    """Whether a module or weight is in a part that reads images and stays as it is."""
    base: Any = model.get_base_model() if isinstance(model, PeftModel) else model
    part = image_text.part_of(path, base.config.model_type)
    return part is not None and part in getattr(base, _FROZEN, {"tower", "projector"})


def frozen_modules(model: PreTrainedModel | PeftModel) -> list[str]:
    """Return regular expressions of the modules in frozen parts, for peft."""
    base: Any = model.get_base_model() if isinstance(model, PeftModel) else model
    family = image_text.FAMILIES.get(base.config.model_type)
    if family is None:
        return []
    frozen = getattr(base, _FROZEN, frozenset({"tower", "projector"}))
    found = []
    if "projector" in frozen:
        found += [rf"{re.escape(name)}(\..+)?" for name in family.projectors]
    if "tower" in frozen:
        found.append(rf"{re.escape(family.tower)}(\.{_without_projectors(family)}.+)?")
    return found


def language_modules(model: Any, kinds: Any) -> Iterator[Any]:  # noqa: ANN401 -- maybe wrapped
    """Yield the modules of some kinds that are in no part that reads images.

    These compute for each text; those parts only for a text with images.
    """
    family = model.config.model_type
    for path, module in model.named_modules():
        if isinstance(module, kinds) and image_text.part_of(path, family) is None:
            yield module


def _without_projectors(family: ImageTextFamily) -> str:
    """Return a look-ahead that refuses the projectors inside of the tower, if there are any."""
    inside = f"{family.tower}."
    names = [
        re.escape(name.removeprefix(inside))
        for name in family.projectors
        if name.startswith(inside)
    ]
    return rf"(?!(?:{'|'.join(names)})(?:\.|$))" if names else ""
