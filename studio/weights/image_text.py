"""Families that read images and write text: their parts, and how many tokens an image becomes.

The counts are those of transformers 5.23, computed from an image's size alone, without loading an
image processor. `tests/training/models/test_processors.py` compares them.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

PROCESSOR_FILE = "processor_config.json"
IMAGE_PROCESSOR_FILE = "preprocessor_config.json"
_MAX_FILE_BYTES = 2**20
_MAX_ASPECT_RATIO = 200
"""More elongated images are refused by Qwen's image processor."""

VisionPart = Literal["tower", "projector"]


@dataclass(frozen=True, slots=True)
class ImageTextFamily:
    """Where a family keeps its parts, by the names of modules in the loaded model and in files."""

    tower: str
    """The module that reads images."""
    projectors: tuple[str, ...]
    """The modules that turn what it reads into tokens of the language model."""
    has_grid: bool
    """Whether images keep their shape, so that larger ones become more tokens."""

    def part_of(self, path: str) -> VisionPart | None:
        """Return the part that a module or weight belongs to; None for the language model."""
        parts = f".{path}."
        if any(f".{name}." in parts for name in self.projectors):
            return "projector"
        return "tower" if f".{self.tower}." in parts else None


_QWEN = ImageTextFamily("visual", ("visual.merger", "visual.deepstack_merger_list"), has_grid=True)
FAMILIES: Mapping[str, ImageTextFamily] = {
    "llava": ImageTextFamily("vision_tower", ("multi_modal_projector",), has_grid=False),
    "qwen2_vl": _QWEN,
    "qwen2_5_vl": _QWEN,
    "qwen3_vl": _QWEN,
}
"""The families that are trained, by `model_type`. Each is trained in
`tests/training/runs/test_vision.py`."""

_TEXT_FAMILIES = {
    "qwen2_vl_text": "qwen2",
    "qwen2_5_vl_text": "qwen2",
    "qwen3_vl_text": "qwen3",
}
"""Families with the same layers but for the positions of images."""

_CLASS_TOKENS = {"clip_vision_model": 1, "siglip_vision_model": 0}
"""Tokens that the vision towers of LLaVA put before those of an image, by `model_type`."""


def is_readable(config: Mapping[str, Any]) -> bool:
    """Whether a config of one of these families describes a model that can be trained.

    LLaVA's config also describes Pixtral, which reads images of any size.
    """
    if config.get("model_type") != "llava":
        return True
    tower = config.get("vision_config", {})
    # A config without a type means CLIP.
    kind = tower.get("model_type", "clip_vision_model") if isinstance(tower, Mapping) else ""
    return kind in _CLASS_TOKENS


def family_of(config: Mapping[str, Any]) -> ImageTextFamily | None:
    """Return the family that a config describes; None for any other model."""
    return FAMILIES.get(str(config.get("model_type"))) if is_readable(config) else None


def flatten(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config of one of these families with its language model's values at the top.

    Configs of other models stay as they are.
    """
    text = config.get("text_config")
    if family_of(config) is None or not isinstance(text, Mapping):
        return dict(config)
    return {**config, **text, "model_type": config["model_type"]}


def language_family(config: Mapping[str, Any]) -> str:
    """Return the family of text models that the language model of a config is like."""
    text = config.get("text_config")
    if family_of(config) is None or not isinstance(text, Mapping):
        return ""
    name = str(text.get("model_type", ""))
    return _TEXT_FAMILIES.get(name, name)


def part_of(path: str, family: str) -> VisionPart | None:
    """Return the part of a model that reads images and a weight is in; None for all others."""
    known = FAMILIES.get(family)
    return known.part_of(path) if known else None


class UnreadableImageError(ValueError):
    """A model cannot read an image; the message explains why, without a full stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageTokens:
    """How many tokens a model reads for an image."""

    token_id: int
    """The token that stands for a part of an image."""
    fixed: int = 0
    """Tokens of each image, if all are scaled to one size."""
    patches: int = 0
    """Patches of each image then, with the tower's own tokens."""
    pixels_per_token: int = 1
    """The side of the square of an image that becomes a token, in pixels, otherwise."""
    merge: int = 1
    """The side of that square, in patches."""
    min_pixels: int = 0
    max_pixels: int = 0
    """Smaller and larger images are scaled to so many pixels."""

    def limited(self, pixels: int) -> "ImageTokens":
        """Return the tokens if images are scaled to at most so many pixels."""
        if self.fixed:
            return self
        limit = max(pixels, self.min_pixels, self.pixels_per_token**2)
        return replace(self, max_pixels=min(limit, self.max_pixels))

    @property
    def most(self) -> int:
        """The most tokens that one image becomes."""
        return self.fixed or max(1, self.max_pixels // self.pixels_per_token**2)

    def count(self, width: int, height: int) -> int:
        """Return the tokens of an image of this size.

        Raises:
            UnreadableImageError: it is too elongated.

        """
        if self.fixed:
            return self.fixed
        rows, columns = self._grid(width, height)
        return rows * columns

    def count_patches(self, width: int, height: int) -> int:
        """Return how many patches of an image of this size the tower reads."""
        return self.patches or self.count(width, height) * self.merge**2

    def _grid(self, width: int, height: int) -> tuple[int, int]:
        """As `smart_resize` of Qwen2-VL."""
        if max(width, height) > _MAX_ASPECT_RATIO * min(width, height):
            raise UnreadableImageError(
                f"an image is {width:,} by {height:,} pixels: more than {_MAX_ASPECT_RATIO} times "
                "as long as wide"
            )
        side = self.pixels_per_token
        sides = [round(length / side) for length in (height, width)]
        pixels = math.prod(sides) * side**2
        if pixels > self.max_pixels:
            scale = math.sqrt(height * width / self.max_pixels)
            sides = [max(1, math.floor(length / scale / side)) for length in (height, width)]
        elif pixels < self.min_pixels:
            scale = math.sqrt(self.min_pixels / (height * width))
            sides = [math.ceil(length * scale / side) for length in (height, width)]
        return sides[0], sides[1]


def read_folder(folder: Path) -> ImageTokens | None:
    """Return the tokens of images in a model's folder; None if it reads none, or does not say."""
    config = read_json(folder / "config.json")
    return read(config, read_image_processor(folder))


def read(config: Mapping[str, Any], processor: Mapping[str, Any]) -> ImageTokens | None:
    """Return the tokens of images from a model's config and that of its image processor."""
    family = family_of(config)
    if family is None:
        return None
    try:
        return _read_grid(config, processor) if family.has_grid else _read_fixed(config, processor)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        return None


def read_image_processor(folder: Path) -> Mapping[str, Any]:
    """Return the settings of a model's image processor; empty if there are none."""
    nested = read_json(folder / PROCESSOR_FILE).get("image_processor")
    return nested if isinstance(nested, dict) else read_json(folder / IMAGE_PROCESSOR_FILE)


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file; empty if there is none."""
    try:
        if path.stat().st_size > _MAX_FILE_BYTES:
            return {}
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return values if isinstance(values, dict) else {}


def _read_fixed(config: Mapping[str, Any], processor: Mapping[str, Any]) -> ImageTokens:
    tower = config.get("vision_config") or {}
    patch = _positive(tower.get("patch_size", 14))
    crops = processor.get("do_center_crop", "crop_size" in processor)
    height, width = _sides(processor["crop_size"] if crops else processor["size"])
    patches = (height // patch) * (width // patch)
    patches += _CLASS_TOKENS[tower.get("model_type", "clip_vision_model")]
    is_default = config.get("vision_feature_select_strategy", "default") == "default"
    token = config.get("image_token_id", config.get("image_token_index", 32000))
    return ImageTokens(
        token_id=_positive(token), fixed=_positive(patches - is_default), patches=patches
    )


def _sides(size: int | Mapping[str, int]) -> tuple[int, int]:
    """Return height and width of a size: of a square, it may be one number."""
    if isinstance(size, int):
        return _positive(size), _positive(size)
    if "height" in size:
        return _positive(size["height"]), _positive(size["width"])
    return _positive(size["shortest_edge"]), _positive(size["shortest_edge"])


def _read_grid(config: Mapping[str, Any], processor: Mapping[str, Any]) -> ImageTokens:
    size = processor.get("size")
    edges = size if isinstance(size, dict) else {}
    least = processor.get("min_pixels") or edges.get("shortest_edge") or 56 * 56
    most = processor.get("max_pixels") or edges.get("longest_edge") or 28 * 28 * 1280
    merge = _positive(processor.get("merge_size", 2))
    token = config.get("image_token_id", 151655)
    return ImageTokens(
        token_id=_positive(token),
        pixels_per_token=_positive(processor.get("patch_size", 14)) * merge,
        merge=merge,
        min_pixels=_positive(least),
        max_pixels=_positive(most),
    )


def _positive(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 2**31:
        raise ValueError(value)
    return value
