"""Where in a row something suspicious is, and why it is thought so: for people who look at it."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any
from unicodedata import name

from studio.intake.quality.row_checks import (
    LONG,
    LONG_BYTES,
    WRITTEN,
    letters_of,
    misplaced,
    script,
    script_name,
    texts,
)

Row = dict[str, Any]
Span = tuple[int, int]

SHOWN = 4000
"""Characters of a text around what was found in it."""
_BEFORE = 300
"""Of them, those before it."""
_CUT_OFF = 2 * _BEFORE
"""Where all that follows is what was found, its beginning is enough."""
_NAMED = 3
"""How many different things a sentence names."""

_TWINS = {
    "duplicates": "The same as row {row}.",
    "same_question": "It asks what row {row} asks.",
    "overlap": "It asks what row {row} of the training rows asks.",
}


@dataclass(frozen=True, slots=True)
class Piece:
    text: str
    is_found: bool = False
    is_ours: bool = False
    """Whether it says what is left out of the text, and is none of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spotted:
    """A row, and what was found in it."""

    why: str
    """A sentence; nothing where the finding has said all."""
    twin: int | None
    """The row it repeats: of an overlap, among the rows to train on."""
    texts: list[list[Piece]]
    """Each text of the row, in the order of `suspicions.texts`; of a long one what is around what
    was found."""
    turns: tuple[int, ...]
    """Which of its turns as a whole are what was found."""


def spot(code: str, row: Row, twin: int | None = None) -> Spotted:
    """Show a finding in one of its rows."""
    spans = list(_spans(code, row))
    shown = [_pieces(code, text, found) for text, found in zip(texts(row), spans, strict=True)]
    return Spotted(why=_why(code, row, twin), twin=twin, texts=shown, turns=_turns(code, row))


def _spans(code: str, row: Row) -> Iterator[list[Span]]:
    written = script(row) if code == "other_script" else ""
    before = 0
    for text in texts(row):
        if code in WRITTEN:
            yield _matches(WRITTEN[code][1], text)
        elif written:
            yield list(letters_of(text, written))
        elif code == "over_long":
            rest = max(0, LONG_BYTES - before)
            kept = len(text.encode()[:rest].decode(errors="ignore"))
            yield [(kept, len(text))] if kept < len(text) else []
        else:
            yield []
        before += len(text.encode())


def _matches(pattern: re.Pattern[str], text: str) -> list[Span]:
    return [found.span() for found in pattern.finditer(text)]


def _pieces(code: str, text: str, spans: list[Span]) -> list[Piece]:
    first = spans[0][0] if spans else 0
    most = _CUT_OFF if code == "over_long" else SHOWN
    start = max(0, first - _BEFORE) if len(text) > most else 0
    end = min(len(text), start + most)
    pieces = list(_cut(code, text, spans, (start, end)))
    if start:
        pieces.insert(0, Piece(f"({start:,} characters before) ", is_ours=True))
    if end < len(text):
        pieces.append(Piece(f" (and {len(text) - end:,} more)", is_ours=True))
    return pieces


def _cut(code: str, text: str, spans: Iterable[Span], window: Span) -> Iterator[Piece]:
    place, end = window
    for first, last in spans:
        if first >= end:
            break
        if first > place:
            yield Piece(text[place:first])
        place = min(last, end)
        yield Piece(_visible(code, text[first:place]), is_found=True)
    if place < end:
        yield Piece(text[place:end])


def _visible(code: str, found: str) -> str:
    return " ".join(map(_code_point, found)) if code == "control_characters" else found


def _code_point(letter: str) -> str:
    return f"U+{ord(letter):04X}"


def _turns(code: str, row: Row) -> tuple[int, ...]:
    if code == "out_of_order":
        return misplaced(row)
    if code == "says_nothing":
        return (len(row["messages"]) + len(row.get("chosen", ())) - 1,)
    return ()


def _why(code: str, row: Row, twin: int | None) -> str:
    if code in _TWINS and twin is not None:
        return _TWINS[code].format(row=twin)
    if code == "other_script":
        return f"Most of its letters are {script_name(script(row))}."
    if code == "over_long":
        size = sum(len(text.encode()) for text in texts(row)) * LONG // LONG_BYTES
        return f"About {size:,} tokens: what is marked stands behind the first {LONG:,}."
    if code == "out_of_order":
        return " ".join(_odd(row, place) for place in misplaced(row)[:_NAMED])
    if code in WRITTEN:
        return _held(code, row)
    return ""


def _held(code: str, row: Row) -> str:
    pattern = WRITTEN[code][1]
    found = [one for text in texts(row) for one in pattern.findall(text)]
    named = [_named(code, one) for one in dict.fromkeys(found)][:_NAMED]
    if len(found) > 1 and len(named) == 1:
        return f"It holds {named[0]} {len(found):,} times."
    return f"It holds {', '.join(named)}."


def _named(code: str, found: str) -> str:
    if code != "control_characters":
        return found
    called = name(found, "").lower()
    return f"{_code_point(found)} ({called})" if called else _code_point(found)


def _odd(row: Row, place: int) -> str:
    turns = [*row["messages"], *row.get("chosen", ())]
    role = turns[place]["role"]
    if role == "system":
        return f"Turn {place + 1} is a system turn, which should be the first."
    spoken = [turn["role"] for turn in turns[:place] if turn["role"] != "system"]
    if not spoken:
        return f"The first turn is of the role {role}, and should be the user's."
    return f"Turn {place + 1} is the {role}'s, as the turn before it."
