"""Split the text of a turn at its images, for a page."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class TurnPiece:
    """Images that stand together, then the text up to the next ones."""

    images: list[Mapping[str, Any]] = field(default_factory=list)
    text: str = ""


def split_at_images(turn: Mapping[str, Any]) -> list[TurnPiece]:
    """Return the images of a turn with the text after them; the first piece may have none."""
    text, pieces, start = turn.get("content") or "", [TurnPiece()], 0
    for image in turn.get("images") or ():
        if image["at"] > start:
            pieces[-1].text = text[start : image["at"]]
            pieces.append(TurnPiece())
            start = image["at"]
        pieces[-1].images.append(image)
    pieces[-1].text = text[start:]
    return pieces
