"""Compare answers to the same prompts and mark the words that differ."""

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Literal

_UNSPACED_SCRIPTS = (
    r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u9fff"
    r"\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff"
)
"""Thai, Lao, Burmese, Khmer, Chinese, Japanese and their punctuation."""

_WORD = re.compile(rf"(?:[{_UNSPACED_SCRIPTS}]|[^\s{_UNSPACED_SCRIPTS}]+)\s*")

_MIN_SHARED = 0.2
"""Minimum shared fraction of two answers' characters for marking their differences."""


@dataclass(frozen=True, slots=True)
class DiffPiece:
    """Words of an answer compared with another: in both, only here, or only there."""

    kind: Literal["same", "added", "gone"]
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleAnswer:
    """A run's answer to one prompt."""

    prompt: str
    wanted: str
    answer: str


@dataclass(frozen=True, slots=True)
class AnswerScore:
    """How many answers are correct, of those with an expected answer."""

    right: int
    judged: int

    def __str__(self) -> str:
        return f"{self.right} of {self.judged}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerDiff:
    """A prompt to which not all modes gave the same answer."""

    prompt: str
    wanted: str
    reference: str
    is_right: bool | None
    """Whether the reference's answer is correct; see `is_correct`."""
    others_right: Mapping[str, bool | None]
    """Whether each answer is correct, by mode."""
    others: Mapping[str, list[DiffPiece]]
    """By mode; modes without an answer are left out."""


AnswersByPrompt = Mapping[int, SampleAnswer]
"""A run's answers by the position of their prompt."""


def is_correct(answer: str, expected: str) -> bool | None:
    """Return whether an answer equals the expected text; None if none is expected.

    Case and punctuation matter; white space and Unicode normalisation do not. A looser rule would
    accept answers that only a person can judge.

    """
    if not expected.strip():
        return None
    return _normalise(answer) == _normalise(expected)


def score_answers(sheet: AnswersByPrompt) -> AnswerScore:
    """Count the correct answers of a run."""
    return count_correct(is_correct(one.answer, one.wanted) for one in sheet.values())


def count_correct(judged: Iterable[bool | None]) -> AnswerScore:
    """Count the correct answers among those with an expected answer."""
    known = [one for one in judged if one is not None]
    return AnswerScore(sum(known), len(known))


def _normalise(text: str) -> str:
    return " ".join(unicodedata.normalize("NFC", text).split())


def diff_answers(
    reference: AnswersByPrompt, others: Mapping[str, AnswersByPrompt]
) -> list[AnswerDiff]:
    """Return the prompts to which a mode's answer differs from the reference."""
    rows = [_diff_row(place, reference[place], others) for place in sorted(reference)]
    return [
        row
        for row in rows
        if any(piece.kind != "same" for pieces in row.others.values() for piece in pieces)
    ]


def count_differing(one: AnswersByPrompt, other: AnswersByPrompt) -> int:
    """Return to how many common prompts two runs gave different words."""
    both = one.keys() & other.keys()
    return sum(one[place].answer.split() != other[place].answer.split() for place in both)


def diff_words(text: str, against: str) -> list[DiffPiece]:
    """Split an answer into the words it shares with another and those it does not."""
    mine, theirs = _split_words(text), _split_words(against)
    stripped = [one.strip() for one in theirs], [one.strip() for one in mine]
    # Common words count even in long answers: they hold its sentences together.
    match = SequenceMatcher(None, *stripped, autojunk=False)
    pieces: list[DiffPiece] = []
    for kind, start, end, mine_start, mine_end in match.get_opcodes():
        if kind != "equal" and end > start:
            pieces.append(_join_words("gone", theirs[start:end]))
        if mine_end > mine_start:
            pieces.append(
                _join_words("same" if kind == "equal" else "added", mine[mine_start:mine_end])
            )
    return pieces


def is_rewritten(pieces: Sequence[DiffPiece]) -> bool:
    """Whether so little is shared that marking the differences would not help."""
    lengths = {"same": 0, "added": 0, "gone": 0}
    for piece in pieces:
        lengths[piece.kind] += len(piece.text)
    return 2 * lengths["same"] < _MIN_SHARED * sum(lengths.values(), lengths["same"])


def split_pieces(
    pieces: Sequence[DiffPiece], length: int
) -> tuple[list[DiffPiece], list[DiffPiece]]:
    """Split an answer between two words: at most `length` characters, then the rest."""
    left = length
    for place, piece in enumerate(pieces):
        if len(piece.text) <= left:
            left -= len(piece.text)
            continue
        at = _last_word_end(piece.text, left)
        parts = (DiffPiece(piece.kind, piece.text[:at]), DiffPiece(piece.kind, piece.text[at:]))
        before, after = ([one] if one.text else [] for one in parts)
        return [*pieces[:place], *before], [*after, *pieces[place + 1 :]]
    return list(pieces), []


def _last_word_end(text: str, most: int) -> int:
    """Return where the last complete word ends within a number of characters."""
    end = 0
    for word in _split_words(text):
        if end + len(word) > most:
            break
        end += len(word)
    return end


def _diff_row(
    place: int, reference: SampleAnswer, others: Mapping[str, AnswersByPrompt]
) -> AnswerDiff:
    return AnswerDiff(
        prompt=reference.prompt,
        wanted=reference.wanted,
        reference=reference.answer,
        is_right=is_correct(reference.answer, reference.wanted),
        others_right={
            mode: is_correct(sheet[place].answer, reference.wanted)
            for mode, sheet in others.items()
            if place in sheet
        },
        others={
            mode: diff_words(sheet[place].answer, reference.answer)
            for mode, sheet in others.items()
            if place in sheet
        },
    )


def _split_words(text: str) -> list[str]:
    """Return the words of a text, each with the white space after it.

    In scripts without spaces, every character counts as a word.

    """
    return _WORD.findall(text)


def _join_words(kind: Literal["same", "added", "gone"], words: Sequence[str]) -> DiffPiece:
    return DiffPiece(kind, "".join(words))
