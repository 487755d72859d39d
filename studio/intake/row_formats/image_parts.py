"""Images in rows: what refers to them, and where they stand in the texts of turns.

A row refers to an image in a content part of a turn, in a turn's own list, or in a column. Where it
stands follows from the part, or from the marker `<image>` in a text.
"""

import base64
import binascii
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from studio.intake.problems import ProblemCode
from studio.intake.row_formats.schema import CanonicalRow, Turn, UnusableRowError

IMAGE_PART_TYPE = re.compile(r"(?:input_?)?(?:image|img)(?:_?(?:url|file|data|asset))?s?")
"""Types of content parts that are images."""
_PART_KEYS = ("image_url", "image", "source", "url", "path", "file", "base64", "data")
_TYPELESS_KEYS = ("image", "image_url")
"""Keys of parts that name no type, such as Qwen's."""
_MARKER = re.compile(r"<image>", re.IGNORECASE)
_CODE = re.compile(r"```.*?(?:```|\Z)|`[^`\n]*`", re.DOTALL)
_CLOSING = re.compile(r"</image", re.IGNORECASE)
_SHA256 = re.compile(r"[0-9a-f]{64}")
_BASE64 = re.compile(r"[A-Za-z0-9+/=\r\n]{500,}")
"""Base64 without a data URL: longer than a path."""


@dataclass(frozen=True, slots=True)
class ImageRef:
    """What a row says about an image: its content, or where that is."""

    name: str = ""
    """A path, a URL, or a data URL."""
    content: bytes | None = None
    sha256: str = ""
    """Of an image in the folder of the rows: these rows were written by the studio."""


@dataclass(frozen=True, slots=True)
class PlacedImage:
    """An image of a turn, before its content has been read."""

    at: int
    """Before which character of the turn's content it stands."""
    ref: ImageRef | None = None
    """None: the next image of the row's columns."""


def placed_images(turn: Turn) -> list[PlacedImage]:
    """Return the images of a turn whose content has not been read yet."""
    return cast("list[PlacedImage]", turn.get("images", []))


def row_turns(row: CanonicalRow) -> list[Turn]:
    """Return the turns of a conversation; a row of another kind has no images."""
    return cast("list[Turn]", row.get("messages", []))


def with_placed_images(turn: Turn, images: Sequence[PlacedImage]) -> Turn:
    """Return a turn with images whose content has not been read yet, sorted by place."""
    ordered = sorted(images, key=lambda image: image.at)
    return cast("Turn", {**turn, "images": ordered}) if ordered else turn


def parse_image_ref(value: Any) -> ImageRef:  # noqa: ANN401 -- from a user's file
    """Return what a value says about an image.

    Raises:
        UnusableRowError: it says nothing about one.

    """
    match value:
        case bytes():
            return ImageRef(content=value)
        case {"sha256": str() as digest} if _SHA256.fullmatch(digest):
            return ImageRef(name=f"images/{digest}", sha256=digest)
        case {"bytes": bytes() as content}:
            return ImageRef(content=content)
        case {"data": str() as text} | {"base64": str() as text}:
            return ImageRef(content=_decode_base64(text))
        case {"path": str() as name} | {"url": str() as name} | {"file_name": str() as name}:
            return _parse_name(name)
        case str():
            return _parse_name(value)
    raise UnusableRowError(ProblemCode.NOT_AN_IMAGE)


def _parse_name(value: str) -> ImageRef:
    name = value.strip()
    if not name:
        raise UnusableRowError(ProblemCode.MISSING_IMAGE)
    if _BASE64.fullmatch(name):
        return ImageRef(content=_decode_base64(name))
    return ImageRef(name=name)


def _decode_base64(text: str) -> bytes:
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise UnusableRowError(ProblemCode.BROKEN_IMAGE, "invalid base64") from error


def is_image_part(part: Any) -> bool:  # noqa: ANN401 -- from a user's file
    """Tell whether a content part of a turn is an image."""
    match part:
        case {"type": str() as kind}:
            return IMAGE_PART_TYPE.fullmatch(kind.lower()) is not None
        case {**entry}:
            return any(entry.get(key) for key in _TYPELESS_KEYS)
    return False


def part_image(part: dict[str, Any]) -> ImageRef | None:
    """Return the image of a content part; None if it is in a column."""
    values = (part[key] for key in _PART_KEYS if part.get(key) not in (None, "", {}))
    value = next(values, None)
    return None if value is None else parse_image_ref(value)


def listed_images(value: Any) -> Iterator[ImageRef]:  # noqa: ANN401 -- from a user's file
    """Yield the images of a cell: one, or a list of them."""
    if isinstance(value, list):
        for item in value:
            yield from listed_images(item)
    elif value is not None and value not in ("", {}, {"bytes": None, "path": None}):
        yield parse_image_ref(value)


def place_turn_images(turn: Turn, value: Any) -> Turn:  # noqa: ANN401 -- from a user's file
    """Return a turn with the images of its own list, at their places or the text's markers."""
    entries = value if isinstance(value, list) else [value]
    entries = [entry for entry in entries if entry not in (None, "", {})]
    if not entries:
        return turn
    refs = list(listed_images(entries))
    if all(isinstance(entry, dict) and isinstance(entry.get("at"), int) for entry in entries):
        end = len(turn["content"])
        places = [min(max(0, entry["at"]), end) for entry in entries]
        images = [PlacedImage(at, ref) for at, ref in zip(places, refs, strict=True)]
        return with_placed_images(turn, [*placed_images(turn), *images])
    marked = _with_markers(turn)
    places = [image.at for image in placed_images(marked)] or [0] * len(refs)
    _check_count(len(places), len(refs))
    images = [PlacedImage(at, ref) for at, ref in zip(places, refs, strict=True)]
    return with_placed_images(marked, images)


def place_row_images(
    turns: list[Turn], refs: Sequence[ImageRef], *, needs_markers: bool
) -> list[Turn]:
    """Return the turns of a row with all of its images, those of its columns at their places.

    Without any place for them, the images of columns stand before the first question, unless they
    need markers.

    Raises:
        UnusableRowError: there are not as many images as places, or one stands in an answer.

    """
    has_own = any(placed_images(turn) for turn in turns)
    if not _open_places(turns) and (refs or not has_own):
        is_sure = bool(refs)
        turns = [_with_markers(turn, is_sure=is_sure) for turn in turns]
    if refs and not _open_places(turns) and not needs_markers:
        turns = _before_first_question(turns, len(refs))
    _check_count(_open_places(turns), len(refs))
    waiting = iter(refs)
    turns = [_filled(turn, waiting) for turn in turns]
    if any(turn["role"] == "assistant" and placed_images(turn) for turn in turns):
        raise UnusableRowError(ProblemCode.IMAGE_IN_ANSWER)
    return turns


def _open_places(turns: Sequence[Turn]) -> int:
    return sum(image.ref is None for turn in turns for image in placed_images(turn))


def _check_count(places: int, images: int) -> None:
    if places != images:
        raise UnusableRowError(ProblemCode.IMAGE_COUNT, f"{images:,} images, {places:,} places")


def _before_first_question(turns: list[Turn], count: int) -> list[Turn]:
    first = next((i for i, turn in enumerate(turns) if turn["role"] == "user"), None)
    if first is None:
        return turns
    images = [*[PlacedImage(0)] * count, *placed_images(turns[first])]
    return [*turns[:first], with_placed_images(turns[first], images), *turns[first + 1 :]]


def _filled(turn: Turn, refs: Iterator[ImageRef]) -> Turn:
    images = [
        replace(image, ref=next(refs)) if image.ref is None else image
        for image in placed_images(turn)
    ]
    return with_placed_images(turn, images)


def _with_markers(turn: Turn, *, is_sure: bool = True) -> Turn:
    """Return a turn with a place for an image at each marker, which is cut from the text.

    Unless it `is_sure` that markers are meant, markup such as SVG is left alone.
    """
    text = turn["content"]
    markers = _find_markers(text) if turn["role"] != "assistant" and not turn.get("images") else []
    if not markers or (not is_sure and _CLOSING.search(text)):
        return turn
    kept, places, start = "", list[int](), 0
    for first, last in markers:
        kept, start = kept + text[start:first], last
        if not kept and text[start : start + 1] == "\n":
            start += 1  # The line break of a marker on a line of its own before the text.
        places.append(len(kept))
    rest = text[start:]
    if not rest.strip():
        kept, rest = kept.removesuffix("\n"), ""
    images = [PlacedImage(min(place, len(kept))) for place in places]
    return with_placed_images(cast("Turn", {**turn, "content": kept + rest}), images)


def _find_markers(text: str) -> list[tuple[int, int]]:
    """Return the spans of the markers in a text; those in code are part of it."""
    code = [match.span() for match in _CODE.finditer(text)] if "`" in text else []
    return [
        match.span()
        for match in _MARKER.finditer(text)
        if not any(start <= match.start() < end for start, end in code)
    ]
