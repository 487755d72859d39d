"""Images in the turns of a conversation: as parts of messages, as tokens, and as opened files.

A row names its images by their checksums; the files lie in the folder `images` of the dataset
version. They are opened one at a time, when a batch is made. Needs no torch.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from PIL import Image, ImageOps

from studio.errors import TrainingError
from studio.training.data.rows import Message
from studio.weights.image_text import ImageTokens, UnreadableImageError

Value = TypeVar("Value")
RowImage = Mapping[str, Any]
"""What a turn says of an image: `sha256`, `at`, `width` and `height`."""
Part = dict[str, str]
"""A part of a message, as chat templates expect it: an image or a text."""

FOLDER = "images"
"""The folder of images, beside the rows of a dataset version."""


def folder_of(rows: Path) -> Path:
    """Return the folder with the images of a file of rows."""
    return rows.parent / FOLDER


def images_of(messages: Sequence[Message]) -> list[RowImage]:
    """Return the images of a conversation, in order."""
    return [image for message in messages for image in message.get("images") or ()]


def to_parts(message: Message) -> list[Part]:
    """Return the content of a turn as parts: each image, and the texts between images."""
    return list(_iter_parts(message["content"], message.get("images") or ()))


def _iter_parts(content: str, images: Sequence[RowImage]) -> Iterator[Part]:
    start = 0
    for image in images:
        if text := content[start : image["at"]]:
            yield {"type": "text", "text": text}
        yield {"type": "image"}
        start = max(start, image["at"])
    if text := content[start:]:
        yield {"type": "text", "text": text}


def count_tokens(image: RowImage, tokens: ImageTokens, location: str) -> int:
    """Return how many tokens an image becomes.

    Raises:
        TrainingError: the model cannot read it.

    """
    try:
        return tokens.count(image["width"], image["height"])
    except UnreadableImageError as error:
        raise TrainingError(
            "bad_row",
            f"{location} cannot be read by this model: {error}.",
            hint="Crop that image, or remove the row.",
        ) from error


def count_repeats(
    ids: Sequence[int], messages: Sequence[Message], tokens: ImageTokens, location: str
) -> list[int]:
    """Return how often each token of a text is repeated: those that stand for images, by size.

    Raises:
        TrainingError: its turns have not as many images as the text has places for them.

    """
    images = images_of(messages)
    places = ids.count(tokens.token_id)
    if places > len(images):
        raise TrainingError(
            "bad_row",
            f"{location} has a text that this model reads as the place of an image.",
            hint="Remove words in angle brackets, such as <image>, from its turns.",
        )
    if places < len(images):
        raise TrainingError(
            "chat_template_refused",
            f"{location} has images that the model's chat template leaves out.",
            hint="Choose a model whose chat template has images in such turns.",
        )
    sizes = iter([count_tokens(image, tokens, location) for image in images])
    return [next(sizes) if token == tokens.token_id else 1 for token in ids]


def repeat(values: Sequence[Value], repeats: Sequence[int]) -> list[Value]:
    """Return values, each as often as it is repeated."""
    return [value for value, count in zip(values, repeats, strict=True) for _ in range(count)]


def open_image(folder: Path, image: RowImage) -> Image.Image:
    """Open an image of a row, in the orientation in which it was imported.

    Raises:
        TrainingError: its file is missing, broken, or another image.

    """
    size = (image["width"], image["height"])
    try:
        with Image.open(folder / str(image["sha256"])) as opened:
            found = ImageOps.exif_transpose(opened)
            upright = found if found.size == size else opened
            if upright.size == size:
                return upright.convert("RGB")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise _broken(image) from error
    raise _broken(image)


def _broken(image: RowImage) -> TrainingError:
    return TrainingError(
        "bad_row",
        f"The image {str(image['sha256'])[:12]} of the dataset is missing or broken.",
        hint="Import the dataset again.",
    )
