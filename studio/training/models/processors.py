"""Load what turns images into numbers for an image-text model: with Pillow, and no other code.

No upstream processor is used: those of Qwen need torchvision, for videos. What they add to an image
processor is the number of tokens of an image, which `studio.weights.image_text` counts.
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image
from torch import Tensor
from transformers import AutoImageProcessor, PreTrainedConfig, PreTrainedTokenizerBase
from transformers.utils import cached_file

from studio.errors import TrainingError
from studio.training.models import tokenizers
from studio.weights import image_text
from studio.weights.image_text import ImageTokens

_OTHER_FILES = (image_text.PROCESSOR_FILE, "video_preprocessor_config.json")
FILES = (image_text.IMAGE_PROCESSOR_FILE, *_OTHER_FILES)
"""The files with the settings of upstream's processors."""

_UNREADABLE = TrainingError(
    "model_not_found",
    "The model's folder has no usable image processor.",
    hint="Download the model again: it needs its preprocessor_config.json.",
)


@dataclass(frozen=True, slots=True)
class ImageReader:
    """Turns images into what a model reads."""

    image_processor: Any
    """Upstream's image processor, on Pillow."""
    tokens: ImageTokens
    has_grid: bool
    """Whether images keep their shape, so that tokens have positions in a grid."""
    files: Mapping[str, dict[str, Any]]
    """The other settings of upstream's processors, by the name of their file."""

    def read(self, images: Sequence[Image.Image]) -> dict[str, Tensor]:
        """Return the inputs of a model for images, in the order in which rows have them.

        Values are float32; the model casts them to the format of its tower.
        """
        if not images:
            return {}
        values = self.image_processor(images=list(images), return_tensors="pt")
        return {name: values[name] for name in ("pixel_values", "image_grid_thw") if name in values}

    def read_types(self, ids: Tensor) -> dict[str, Tensor]:
        """Return which tokens are those of images, if the model asks for that."""
        if not self.has_grid:
            return {}
        return {"mm_token_type_ids": (ids == self.tokens.token_id).int()}

    def count_tokens(self, inputs: Mapping[str, Tensor]) -> int:
        """Return the tokens of the images in inputs."""
        if "image_grid_thw" in inputs:
            return int(inputs["image_grid_thw"].prod(-1).sum()) // self.tokens.merge**2
        return self.tokens.fixed * len(inputs.get("pixel_values", ()))

    def save(self, folder: Path) -> None:
        """Save it beside a model, in the form that upstream's processors load."""
        self.image_processor.save_pretrained(folder)
        own = image_text.read_json(folder / image_text.IMAGE_PROCESSOR_FILE)
        for name, values in self.files.items():
            # One file may hold the settings of the other, which it would then have of the base.
            nested = {"image_processor": own} if "image_processor" in values else {}
            text = json.dumps(values | nested, indent=2) + "\n"
            (folder / name).write_text(text, encoding="utf-8")


def load(
    name: str,
    config: PreTrainedConfig,
    tokenizer: PreTrainedTokenizerBase,
    max_pixels: int | None = None,
    *,
    offline: bool = False,
) -> ImageReader:
    """Load the image processor of a folder or hub model, and tell its tokenizer about images.

    Images are scaled to at most `max_pixels`, if the family keeps their shape.

    Raises:
        TrainingError: there is none, or its settings are not those of a known family.

    """
    family = image_text.family_of(config.to_dict())
    if family is None:
        raise _UNREADABLE
    loaded = load_image_processor(name, offline=offline)
    tokens = image_text.read(config.to_dict(), loaded.to_dict())
    if tokens is None:
        raise _UNREADABLE
    if max_pixels is not None and family.has_grid:
        tokens = tokens.limited(max_pixels)
        size = {"shortest_edge": tokens.min_pixels, "longest_edge": tokens.max_pixels}
        loaded.size = type(loaded.size)(**size) if hasattr(loaded.size, "shortest_edge") else size
    tokenizers.set_image_tokens(tokenizer, tokens)
    return ImageReader(loaded, tokens, family.has_grid, _read_files(name, offline=offline))


def _read_files(name: str, *, offline: bool) -> dict[str, dict[str, Any]]:
    """Return the settings of upstream's processors, without those that name code."""
    options = {"local_files_only": offline, "_raise_exceptions_for_missing_entries": False}
    paths = {file: cached_file(name, file, **options) for file in _OTHER_FILES}
    found = {file: image_text.read_json(Path(path)) for file, path in paths.items() if path}
    return {
        file: {key: value for key, value in values.items() if key != "auto_map"}
        for file, values in found.items()
        if values
    }


def copy_files(source: Path, folder: Path) -> None:
    """Copy the settings that `ImageReader.save` wrote, if there are any."""
    for name in FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, folder / name)


def load_image_processor(name: str, *, offline: bool = False) -> Any:  # noqa: ANN401 -- upstream's classes share no type
    """Load upstream's image processor of a folder or hub model, on Pillow.

    Raises:
        TrainingError: there is none.

    """
    try:
        return AutoImageProcessor.from_pretrained(
            name, backend="pil", local_files_only=offline, trust_remote_code=False
        )
    except (OSError, ValueError, TypeError, KeyError, ImportError) as error:
        raise _UNREADABLE from error
