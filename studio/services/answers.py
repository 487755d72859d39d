"""Answers to one prompt laid beside each other, and the words in which they differ."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Literal


@dataclass(frozen=True, slots=True)
class Piece:
    """Some words of an answer, beside another answer: in both, only here, or only there."""

    kind: Literal["same", "added", "gone"]
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What one run wrote to one prompt."""

    prompt: str
    wanted: str
    answer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One prompt to which not all wrote the same."""

    prompt: str
    wanted: str
    reference: str
    others: Mapping[str, list[Piece]]
    """By mode; a mode that wrote nothing is not among them."""


Sheet = Mapping[int, Written]
"""A run's answers by the place of their prompt."""


def differing(reference: Sheet, others: Mapping[str, Sheet]) -> list[Row]:
    """Return the prompts to which a mode wrote something else than the reference."""
    rows = [_row(place, reference[place], others) for place in sorted(reference)]
    return [
        row
        for row in rows
        if any(piece.kind != "same" for pieces in row.others.values() for piece in pieces)
    ]


def count(one: Sheet, other: Sheet) -> int:
    """Return to how many of their common prompts two runs wrote different words."""
    both = one.keys() & other.keys()
    return sum(one[place].answer.split() != other[place].answer.split() for place in both)


def compared(text: str, against: str) -> list[Piece]:
    """Cut an answer into the words that it shares with another and those it does not."""
    mine, theirs = _words(text), _words(against)
    match = SequenceMatcher(None, [one.strip() for one in theirs], [one.strip() for one in mine])
    pieces: list[Piece] = []
    for kind, start, end, mine_start, mine_end in match.get_opcodes():
        if kind != "equal" and end > start:
            pieces.append(_piece("gone", theirs[start:end]))
        if mine_end > mine_start:
            pieces.append(_piece("same" if kind == "equal" else "added", mine[mine_start:mine_end]))
    return pieces


def _row(place: int, reference: Written, others: Mapping[str, Sheet]) -> Row:
    return Row(
        prompt=reference.prompt,
        wanted=reference.wanted,
        reference=reference.answer,
        others={
            mode: compared(sheet[place].answer, reference.answer)
            for mode, sheet in others.items()
            if place in sheet
        },
    )


def _words(text: str) -> list[str]:
    """Return the words of a text, each with the white space after it."""
    return re.findall(r"\S+\s*", text)


def _piece(kind: Literal["same", "added", "gone"], words: Sequence[str]) -> Piece:
    return Piece(kind, "".join(words))
