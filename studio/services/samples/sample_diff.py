"""Compare answers to the same prompts and mark the words that differ."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Literal

from studio.evaluation.answer_rules import UNSPACED_SCRIPTS, is_correct

_WORD = re.compile(rf"(?:[{UNSPACED_SCRIPTS}]|[^\s{UNSPACED_SCRIPTS}]+)\s*")

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


def score_answers(answers: AnswersByPrompt) -> AnswerScore:
    """Count the correct answers of a run."""
    return count_correct(is_correct(sample.answer, sample.wanted) for sample in answers.values())


def count_correct(judged: Iterable[bool | None]) -> AnswerScore:
    """Count the correct answers among those with an expected answer."""
    verdicts = [verdict for verdict in judged if verdict is not None]
    return AnswerScore(sum(verdicts), len(verdicts))


def diff_answers(
    reference: AnswersByPrompt, others: Mapping[str, AnswersByPrompt]
) -> list[AnswerDiff]:
    """Return the prompts to which a mode's answer differs from the reference."""
    rows = [_diff_row(position, reference[position], others) for position in sorted(reference)]
    return [
        row
        for row in rows
        if any(piece.kind != "same" for pieces in row.others.values() for piece in pieces)
    ]


def count_differing(first: AnswersByPrompt, second: AnswersByPrompt) -> int:
    """Return to how many common prompts two runs gave different words."""
    shared = first.keys() & second.keys()
    return sum(
        first[position].answer.split() != second[position].answer.split() for position in shared
    )


def diff_words(text: str, reference: str) -> list[DiffPiece]:
    """Split an answer into the words it shares with another and those it does not."""
    words, reference_words = _split_words(text), _split_words(reference)
    stripped = [word.strip() for word in reference_words], [word.strip() for word in words]
    # Common words count even in long answers: they hold its sentences together.
    match = SequenceMatcher(None, *stripped, autojunk=False)
    pieces: list[DiffPiece] = []
    for kind, start, end, word_start, word_end in match.get_opcodes():
        if kind != "equal" and end > start:
            pieces.append(_join_words("gone", reference_words[start:end]))
        if word_end > word_start:
            pieces.append(
                _join_words("same" if kind == "equal" else "added", words[word_start:word_end])
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
    remaining = length
    for index, piece in enumerate(pieces):
        if len(piece.text) <= remaining:
            remaining -= len(piece.text)
            continue
        cut = _last_word_end(piece.text, remaining)
        parts = (DiffPiece(piece.kind, piece.text[:cut]), DiffPiece(piece.kind, piece.text[cut:]))
        before, after = ([part] if part.text else [] for part in parts)
        return [*pieces[:index], *before], [*after, *pieces[index + 1 :]]
    return list(pieces), []


def _last_word_end(text: str, limit: int) -> int:
    """Return where the last complete word ends within a number of characters."""
    end = 0
    for word in _split_words(text):
        if end + len(word) > limit:
            break
        end += len(word)
    return end


def _diff_row(
    position: int, reference: SampleAnswer, others: Mapping[str, AnswersByPrompt]
) -> AnswerDiff:
    return AnswerDiff(
        prompt=reference.prompt,
        wanted=reference.wanted,
        reference=reference.answer,
        is_right=is_correct(reference.answer, reference.wanted),
        others_right={
            mode: is_correct(answers[position].answer, reference.wanted)
            for mode, answers in others.items()
            if position in answers
        },
        others={
            mode: diff_words(answers[position].answer, reference.answer)
            for mode, answers in others.items()
            if position in answers
        },
    )


def _split_words(text: str) -> list[str]:
    """Return the words of a text, each with the white space after it.

    In scripts without spaces, every character counts as a word.

    """
    return _WORD.findall(text)


def _join_words(kind: Literal["same", "added", "gone"], words: Sequence[str]) -> DiffPiece:
    return DiffPiece(kind, "".join(words))
