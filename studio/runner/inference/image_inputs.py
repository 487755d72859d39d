"""The images of prompts as a model reads them, beside the tokens that stand for them.

A model puts what it sees in place of these tokens, in the order in which they stand in a batch, so
there must be as many as the images have. That is why an answer in which the model wrote such a
token itself cannot be read again together with images.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO

import torch
from PIL import Image, ImageOps
from torch import Tensor
from transformers import PreTrainedModel

from studio.errors import InvalidError
from studio.protocols.inference_service import GenerationRequest
from studio.training.models.processors import ImageReader

_UNREADABLE = (OSError, ValueError, SyntaxError, Image.DecompressionBombError)


@dataclass(frozen=True, slots=True)
class ImageInputs:
    """The images of one prompt."""

    reader: ImageReader
    values: dict[str, Tensor]


def read_images(request: GenerationRequest, reader: ImageReader) -> ImageInputs:
    """Return the images of a request.

    Raises:
        InvalidError: one cannot be read, or the prompt has not a place for each.

    """
    opened = [_open(content) for content in request.images]
    try:
        expected = sum(reader.tokens.count(*image.size) for image in opened)
        values = reader.read(opened)
    except ValueError as error:
        raise InvalidError(
            f"The model cannot read an image: {error}.", hint="Crop it.", param="messages"
        ) from error
    if request.ids.count(reader.tokens.token_id) != expected:
        raise misplaced_error()
    return ImageInputs(reader, values)


def misplaced_error() -> InvalidError:
    """Return why a prompt is refused whose tokens do not fit its images."""
    return InvalidError(
        "The prompt has not as many places for images as it has images.",
        hint="Remove words in angle brackets, such as <image>, from its text.",
        param="messages",
    )


def _open(content: bytes) -> Image.Image:
    try:
        with Image.open(BytesIO(content)) as opened:
            return ImageOps.exif_transpose(opened).convert("RGB")
    except _UNREADABLE as error:
        raise InvalidError(
            "An image is damaged.", hint="Send another one.", param="messages"
        ) from error


def join(
    prompts: Sequence[ImageInputs | None], ids: Tensor, model: PreTrainedModel
) -> dict[str, Tensor]:
    """Return the inputs for the images of a batch, whose prompts are the rows of `ids`."""
    found = [prompt for prompt in prompts if prompt is not None]
    if not found:
        return {}
    names = found[0].values
    values = {name: torch.cat([prompt.values[name] for prompt in found]) for name in names}
    joined = {name: value.to(model.device) for name, value in values.items()}
    return joined | found[0].reader.read_types(ids)


def image_token(model: PreTrainedModel) -> int | None:
    """Return the token that stands for a part of an image; None for models that read none."""
    token: int | None = getattr(model.config, "image_token_id", None)
    return token
