"""Images in a text that shows a conversation: a mark names each by its checksum."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_BEFORE, _AFTER = "[image ", "]"
_MARK = re.compile(rf"{re.escape(_BEFORE)}([0-9a-f]{{64}}){re.escape(_AFTER)}")


@dataclass(frozen=True, slots=True)
class MarkedText:
    """A text whose marks have been taken out."""

    text: str
    images: Sequence[str] = ()
    """The checksums of its images, in order."""


def mark_images(message: Mapping[str, Any]) -> str:
    """Return the content of a turn with a mark where each of its images stands.

    A mark stands on a line of its own.
    """
    content, marked, start = str(message["content"]), "", 0
    for image in message.get("images") or ():
        marked += content[start : image["at"]]
        start = max(start, image["at"])
        marked += f"{_line_break(marked)}{_BEFORE}{image['sha256']}{_AFTER}\n"
    return (marked + content[start:]).removesuffix("\n") if marked else content


def _line_break(text: str) -> str:
    return "" if not text or text.endswith("\n") else "\n"


def find_marks(text: str) -> MarkedText:
    """Return a text without its marks, and the images that these name."""
    images = _MARK.findall(text)
    if not images:
        return MarkedText(text)
    return MarkedText(re.sub(rf"{_MARK.pattern}\n?", "", text).strip(), images)
