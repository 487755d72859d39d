"""Locate a finding in a row's texts and explain it, for display."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any
from unicodedata import name

from studio.intake.quality.row_checks import (
    LONG_BYTES,
    LONG_TOKENS,
    TEXT_CHECKS,
    main_script,
    misplaced_turns,
    row_texts,
    script_name,
    script_spans,
)

Row = dict[str, Any]
Span = tuple[int, int]

SHOWN_CHARS = 4000
"""Characters of a text shown around a match."""
_CHARS_BEFORE = 300
"""Of them, the characters before the match."""
_OVER_LONG_CHARS = 2 * _CHARS_BEFORE
"""If everything that follows matches, its beginning is enough."""
_MAX_NAMED = 3
"""Distinct matches named in a sentence."""

_TWIN_MESSAGES = {
    "duplicates": "Identical to row {row}.",
    "same_question": "Asks the same as row {row}.",
    "overlap": "Asks the same as training row {row}.",
}


@dataclass(frozen=True, slots=True)
class TextPiece:
    text: str
    is_match: bool = False
    is_note: bool = False
    """Whether this is our note on omitted text, and not part of the text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingInRow:
    """A row, with a finding located in it."""

    reason: str
    """A sentence; empty if the finding's message says it all."""
    twin: int | None
    """The row it repeats; for an overlap, a row of the training part."""
    texts: list[list[TextPiece]]
    """Each text of the row, in the order of `row_checks.row_texts`; long texts are cut to the part
    around the match."""
    turns: tuple[int, ...]
    """The turns that match as a whole."""


def locate_finding(code: str, row: Row, twin: int | None = None) -> FindingInRow:
    """Locate a finding in one of its rows."""
    spans = list(_text_spans(code, row))
    pieces = [
        _split_text(code, text, text_spans)
        for text, text_spans in zip(row_texts(row), spans, strict=True)
    ]
    return FindingInRow(
        reason=_reason(code, row, twin), twin=twin, texts=pieces, turns=_found_turns(code, row)
    )


def _text_spans(code: str, row: Row) -> Iterator[list[Span]]:
    main = main_script(row) if code == "other_script" else ""
    offset = 0
    for text in row_texts(row):
        if code in TEXT_CHECKS:
            yield _match_spans(TEXT_CHECKS[code][1], text)
        elif main:
            yield list(script_spans(text, main))
        elif code == "over_long":
            budget = max(0, LONG_BYTES - offset)
            cut = len(text.encode()[:budget].decode(errors="ignore"))
            yield [(cut, len(text))] if cut < len(text) else []
        else:
            yield []
        offset += len(text.encode())


def _match_spans(pattern: re.Pattern[str], text: str) -> list[Span]:
    return [match.span() for match in pattern.finditer(text)]


def _split_text(code: str, text: str, spans: list[Span]) -> list[TextPiece]:
    first = spans[0][0] if spans else 0
    window = _OVER_LONG_CHARS if code == "over_long" else SHOWN_CHARS
    start = max(0, first - _CHARS_BEFORE) if len(text) > window else 0
    end = min(len(text), start + window)
    pieces = list(_mark_spans(code, text, spans, (start, end)))
    if start:
        pieces.insert(0, TextPiece(f"({start:,} characters before) ", is_note=True))
    if end < len(text):
        pieces.append(TextPiece(f" (and {len(text) - end:,} more)", is_note=True))
    return pieces


def _mark_spans(code: str, text: str, spans: Iterable[Span], window: Span) -> Iterator[TextPiece]:
    place, end = window
    for first, last in spans:
        if first >= end:
            break
        if first > place:
            yield TextPiece(text[place:first])
        place = min(last, end)
        yield TextPiece(_show_invisible(code, text[first:place]), is_match=True)
    if place < end:
        yield TextPiece(text[place:end])


def _show_invisible(code: str, text: str) -> str:
    return " ".join(map(_code_point, text)) if code == "control_characters" else text


def _code_point(letter: str) -> str:
    return f"U+{ord(letter):04X}"


def _found_turns(code: str, row: Row) -> tuple[int, ...]:
    if code == "out_of_order":
        return misplaced_turns(row)
    if code == "says_nothing":
        return (len(row["messages"]) + len(row.get("chosen", ())) - 1,)
    return ()


def _reason(code: str, row: Row, twin: int | None) -> str:
    if code in _TWIN_MESSAGES and twin is not None:
        return _TWIN_MESSAGES[code].format(row=twin)
    if code == "other_script":
        return f"Most letters are {script_name(main_script(row))}."
    if code == "over_long":
        size = sum(len(text.encode()) for text in row_texts(row)) * LONG_TOKENS // LONG_BYTES
        return f"About {size:,} tokens: the marked part is beyond the first {LONG_TOKENS:,}."
    if code == "out_of_order":
        return " ".join(
            _describe_misplaced(row, place) for place in misplaced_turns(row)[:_MAX_NAMED]
        )
    if code in TEXT_CHECKS:
        return _describe_matches(code, row)
    return ""


def _describe_matches(code: str, row: Row) -> str:
    pattern = TEXT_CHECKS[code][1]
    matches = [match for text in row_texts(row) for match in pattern.findall(text)]
    descriptions = [_describe_match(code, match) for match in dict.fromkeys(matches)][:_MAX_NAMED]
    if len(matches) > 1 and len(descriptions) == 1:
        return f"It contains {descriptions[0]} {len(matches):,} times."
    return f"It contains {', '.join(descriptions)}."


def _describe_match(code: str, match: str) -> str:
    if code != "control_characters":
        return match
    letter_name = name(match, "").lower()
    return f"{_code_point(match)} ({letter_name})" if letter_name else _code_point(match)


def _describe_misplaced(row: Row, place: int) -> str:
    turns = [*row["messages"], *row.get("chosen", ())]
    role = turns[place]["role"]
    if role == "system":
        return f"Turn {place + 1} is a system turn, which must come first."
    earlier_roles = [turn["role"] for turn in turns[:place] if turn["role"] != "system"]
    if not earlier_roles:
        return f"The first turn has role {role}, but its role should be user."
    return f"Turn {place + 1} has the same role as the turn before it: {role}."
