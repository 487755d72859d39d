"""Detect images, audio, video and files in rows: a mapping may use images, nothing else.

They are recognised by a column's name and values, by a content part of a turn, or by a placeholder
such as `<image>` in a text. HTML and code contain `<video>` as well, so a text about markup does
not count.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from collections.abc import Mapping as Values
from dataclasses import dataclass
from typing import Any

from studio.errors import InvalidError
from studio.intake.raw_rows import RawRow
from studio.intake.row_formats.image_parts import IMAGE_PART_TYPE
from studio.intake.row_formats.message_formats import MEDIA_PART_TYPE, is_number, parse_json_cell

_MEDIA_NAME = re.compile(
    r"(?:images?|imgs?|pictures?|photos?|pixel_values|audios?|speech|wavs?|videos?|"
    r"inline_?data|file_?data)"
    r"(?:_?(?:paths?|urls?|files?|names?|bytes|b64|base64|data))?"
)
_OTHER_MEDIA_NAME = re.compile(r"audio|speech|wav|video|pixel_values|file_?data|document")
_IMAGE_ID = re.compile(r"(?:image|img)_?ids?")
_FILE_NAME = re.compile(r"(?:media|file|path|attachment|object)s?(?:_?(?:names?|paths?|urls?))?")
"""Columns that may name any file: only image, audio and video extensions count."""
_MEDIA_EXTENSIONS = (
    r"\.(?:png|jpe?g|gif|webp|bmp|tiff?|svg|heic|avif|wav|mp3|flac|ogg|opus|m4a|aac|mp4|avi|mov|"
    r"mkv|webm|npy)"
)
_MEDIA_FILE = re.compile(rf"\S.*{_MEDIA_EXTENSIONS}(?:[?#]\S*)?", re.IGNORECASE)
_REFERENCE = re.compile(r"(?=[^\s]*[\d./\\:_-])[^\s<>]{1,2000}")
"""A path, a URL or an id: a description has spaces, and a class such as `cat` is a bare word."""
_BASE64 = re.compile(r"[A-Za-z0-9+/=\r\n]{2000,}")
_DATA_URL = re.compile(r"data:(?:image|audio|video|application)/[\w.+-]+[;,]", re.IGNORECASE)
_MARKDOWN = re.compile(r"!\[[^\]]*\]\(data:(?:image|audio|video)/", re.IGNORECASE)
_SIGNATURES = (b"\x89PNG", b"\xff\xd8\xff", b"GIF8", b"RIFF", b"ID3", b"fLaC", b"OggS")

_CONTENT_KEYS = frozenset(
    {
        *("content", "value", "parts", "text", "prompt", "completion", "chosen", "rejected"),
        *("question", "answer", "query", "response", "instruction", "input", "output"),
        *("user", "assistant"),
    }
)
"""Keys that hold content parts. Under other keys, `type` may mean anything."""
_TURN_KEYS = frozenset({"role", "from", "content", "value", "messages"})
_TOOL_KEYS = frozenset({"tools", "functions", "tool_calls", "function_call", "arguments"})
"""Keys under which a name such as `image_url` is a tool's argument."""

_PLACEHOLDER = re.compile(
    r"<\|?(?:image_pad|vision_start|vision_pad|video_pad|audio_pad|audio_bos|image_?placeholder|"
    r"image-placeholder|image_soft_token|start_of_image|start_of_audio|imagehere|"
    r"(?:image|audio|video)(?:_\d+)?(?=\|>))\|?>"
    rf"|<(img|audio|video)>[^<\n]{{1,500}}{_MEDIA_EXTENSIONS}</\1>",
    re.IGNORECASE,
)
"""Placeholders that only multimodal models use."""
_PLACEHOLDER_TAG = re.compile(r"<(?:image|audio|video|speech)>", re.IGNORECASE)
_IMAGE_EDGE = re.compile(r"^\s*<image>|<image>\s*$", re.IGNORECASE | re.MULTILINE)
_CLOSING = re.compile(r"</(?:image|audio|video|speech)", re.IGNORECASE)
_CODE = re.compile(r"```.*?(?:```|\Z)|`[^`\n]*`", re.DOTALL)
_MARKUP = re.compile(
    r"</\w|<\w+\s+[\w:-]+=|\b(?:html5?|xml|svg|css|jsx?|dom|tags?|elements?|markup)\b",
    re.IGNORECASE,
)
_MAX_DEPTH = 6

_LEAVE_OUT_HINT = (
    "Use their images, leave these rows out, or use only their text: set `media` in the mapping "
    "to use, leave_out or ignore."
)
_TEXT_ONLY_HINT = (
    "Use rows with text or images. To use only the text of these rows, set `media` in the mapping "
    "to ignore."
)


def find_media(values: Values[str, Any]) -> str:
    """Return the column that holds media, and where in it: `images`, `messages: image_url`.

    Empty if the row is only text.
    """
    return next(
        (place for name, value in values.items() for place in _media_in_column(name, value)), ""
    )


def find_unused_media(values: Values[str, Any], image_columns: Collection[str]) -> str:
    """Return where media is that cannot be used as an image: as `find_media` returns it.

    The images in these columns can be used, and those in turns. Beside them, other columns about
    the same image, such as its URL, are no loss.
    """
    for name, value in values.items():
        if name in image_columns:
            continue
        for place in _media_in_column(name, value):
            is_column = place == name[:60]
            is_harmless = (
                image_columns and not _is_other_media_name(name)
                if is_column
                else _is_usable_part(place.rpartition(": ")[2])
            )
            if not is_harmless:
                return place
    return ""


def image_columns(rows: Sequence[Values[str, Any]], columns: Iterable[str]) -> list[str]:
    """Return the columns that hold images: those with other media are not among them."""
    found = []
    for name in columns:
        values = [row[name] for row in rows if row.get(name) not in (None, "", [])]
        normalised = _normalise_name(name)
        is_other = _is_other_media_name(name) or _IMAGE_ID.fullmatch(normalised)
        if not is_other and any(
            place == name[:60] for value in values for place in _media_in_column(name, value)
        ):
            found.append(name)
    return found


def _is_usable_part(part: str) -> bool:
    return part.lower() == "<image>" or IMAGE_PART_TYPE.fullmatch(part.lower()) is not None


def _is_other_media_name(name: str) -> bool:
    return _OTHER_MEDIA_NAME.match(_normalise_name(name)) is not None


def media_columns(rows: Sequence[RawRow], columns: Sequence[str]) -> list[str]:
    """Return the columns that hold media in these rows, or may do so by their names."""
    return [
        name
        for name in columns
        if _MEDIA_NAME.fullmatch(_normalise_name(name))
        or any(any(_media_in_column(name, row.values.get(name))) for row in rows)
    ]


@dataclass(frozen=True, slots=True)
class MediaCount:
    """How many of the rows hold media, and where the first one does."""

    count: int
    rows: int
    place: str

    @property
    def message(self) -> str:
        return (
            f"{self.count:,} of {self.rows:,} rows contain an image, audio, video or file that is "
            f"not used; the first is in {self.place}."
        )

    def to_error(self) -> InvalidError:
        if self.count == self.rows:
            return InvalidError(self.message, hint=_TEXT_ONLY_HINT, param="file")
        return InvalidError(self.message, hint=_LEAVE_OUT_HINT, param="media")


def count_media(rows: Iterable[RawRow]) -> MediaCount:
    places = [find_media(row.values) for row in rows]
    media_places = [place for place in places if place]
    return MediaCount(len(media_places), len(places), media_places[0] if media_places else "")


def _media_in_column(name: str, value: Any) -> Iterator[str]:  # noqa: ANN401 -- from a user's file
    normalised = _normalise_name(name)
    if value is None or value == "" or normalised in _TOOL_KEYS:
        return
    cell = (
        parse_json_cell(value)
        if _MEDIA_NAME.fullmatch(normalised) or _may_be_turns(value)
        else value
    )
    if _is_media(normalised, cell, 0):
        yield name[:60]
        return
    for part in _media_parts(normalised, cell, 0):
        yield f"{name[:60]}: {part}"


def _may_be_turns(value: Any) -> bool:  # noqa: ANN401 -- from a user's file
    is_json = isinstance(value, str) and value.lstrip()[:1] in {"[", "{"}
    return is_json and ('"role"' in value or '"from"' in value)


def _is_media(name: str, value: Any, depth: int) -> bool:  # noqa: ANN401 -- from a user's file
    """Tell whether the value of a column, or of a key of a turn, is media or refers to it."""
    inner: Iterable[Any] = ()
    match value:
        case bytes():
            return _MEDIA_NAME.fullmatch(name) is not None or value.startswith(_SIGNATURES)
        case {"array": _, "sampling_rate": _}:
            return True
        case {"bytes": content, "path": path}:
            return content is not None or path is not None
        case str() | int():
            return _is_media_reference(name, str(value).strip())
        case {**entry} if _MEDIA_NAME.fullmatch(name):
            inner = entry.values()
        case [*items]:
            inner = items
    return depth < _MAX_DEPTH and any(_is_media(name, item, depth + 1) for item in inner)


def _is_media_reference(name: str, value: str) -> bool:
    if _DATA_URL.match(value):
        return True
    if _IMAGE_ID.fullmatch(name):
        return _REFERENCE.fullmatch(value) is not None
    if _MEDIA_NAME.fullmatch(name):
        reference = (
            _REFERENCE.fullmatch(value) or _MEDIA_FILE.fullmatch(value) or _BASE64.fullmatch(value)
        )
        return reference is not None and not is_number(value)
    return bool(_FILE_NAME.fullmatch(name) and _MEDIA_FILE.fullmatch(value))


def _media_parts(name: str, value: Any, depth: int) -> Iterator[str]:  # noqa: ANN401 -- from a user's file
    """Yield the media in a value: in a text, a turn, or a list of either."""
    if depth > _MAX_DEPTH:
        return
    match value:
        case str():
            yield from _media_in_text(value)
        case [*items]:
            for item in items:
                yield from _media_parts(name, item, depth + 1)
        case {"type": str() as kind} if name in _CONTENT_KEYS and MEDIA_PART_TYPE.fullmatch(
            kind.lower()
        ):
            yield kind
        case {**entry} if depth or _TURN_KEYS & entry.keys():
            yield from _media_in_object(entry, depth)


def _media_in_object(entry: dict[Any, Any], depth: int) -> Iterator[str]:
    for key, inner in entry.items():
        name = _normalise_name(str(key))
        if not inner or name in _TOOL_KEYS:
            continue
        if _is_media(name, inner, depth):
            yield str(key)[:40]
        else:
            yield from _media_parts(name, inner, depth + 1)


def _media_in_text(text: str) -> Iterator[str]:
    if "<" in text:
        yield from _media_placeholders(text)
    if "data:" in text and (_DATA_URL.match(text.lstrip()) or _MARKDOWN.search(text)):
        yield "data:"


def _media_placeholders(text: str) -> Iterator[str]:
    special = _PLACEHOLDER.search(text)
    if special is not None:
        yield special.group()[:40]
        return
    if _PLACEHOLDER_TAG.search(text) is None:
        return
    bare = _CODE.sub("code", text)
    tag = _PLACEHOLDER_TAG.search(bare)
    if tag is None or _CLOSING.search(bare):
        return
    # An image tag on its own is not part of a sentence about markup.
    if _IMAGE_EDGE.search(bare) or not _MARKUP.search(bare):
        yield tag.group()


def _normalise_name(name: str) -> str:
    return name.strip().lower().replace("-", "_").replace(" ", "_")
