"""Evaluation rows whose text is in the training data: their scores say little.

A row overlaps if a training text has 13 words in a row of its prompt or reference, or 8 of one that
is shorter: Brown et al., Language Models are Few-Shot Learners (2020), appendix C. Words are
hashed, and each character of a script without spaces is a word.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal
from zlib import crc32

from studio.evaluation.rows import AnsweredRow
from studio.evaluation.words import split_words

Overlap = Literal["exact", "ngram"]

LONG, SHORT = 13, 8
"""Words in a row that count as overlap, in longer and in shorter texts."""

_MAX_SHARING = 10
"""What more evaluation rows, or half of them, have in common is a form, such as an instruction:
it is no overlap."""

_MAX_GRAMS = 1_000_000
"""Hashes in memory, about 100 MB. Of more, only those divisible by a number are looked at, on both
sides: a row that is in the training data is still found, by one of its many others."""


@dataclass(slots=True)
class _Index:
    """Which rows have which text, by hash."""

    exact: dict[int, set[int]] = field(default_factory=dict)
    """Positions by the hash of the whole prompt, and of prompt and reference."""
    grams: dict[int, dict[int, set[int]]] = field(default_factory=lambda: {LONG: {}, SHORT: {}})
    """Positions by the number of words and the hash of each n-gram."""
    step: int = 1
    """Only hashes that it divides are looked at."""


def overlaps(train_texts: Iterable[str], rows: Sequence[AnsweredRow]) -> dict[int, Overlap]:
    """Return the positions of rows that a training text contains, and how.

    `exact` if a training text is the whole prompt, alone or followed by the reference. Reads the
    training texts once, one at a time.
    """
    index = _build(rows)
    found: dict[int, Overlap] = {}
    for text in train_texts:
        words = _hash_words(text)
        for position in index.exact.get(hash(words), ()):
            found[position] = "exact"
        for size, grams in index.grams.items():
            for gram in _grams(words, size, index.step) if grams else ():
                for position in grams.get(gram, ()):
                    found.setdefault(position, "ngram")
    return dict(sorted(found.items()))


def _build(rows: Sequence[AnsweredRow]) -> _Index:
    texts = {row.position: (_hash_words(row.prompt), _hash_words(row.reference)) for row in rows}
    count = sum(len(words) for parts in texts.values() for words in parts)
    index = _Index(step=1 + count // _MAX_GRAMS)
    for position, (prompt, reference) in texts.items():
        for whole in {prompt, prompt + reference} if prompt else ():
            index.exact.setdefault(hash(whole), set()).add(position)
        for words in (prompt, reference):
            size = LONG if len(words) >= LONG else SHORT
            for gram in _grams(words, size, index.step):
                index.grams[size].setdefault(gram, set()).add(position)
    most = min(_MAX_SHARING, max(1, len(texts) // 2))
    for size, grams in index.grams.items():
        index.grams[size] = {gram: at for gram, at in grams.items() if len(at) <= most}
    return index


def _hash_words(text: str) -> tuple[int, ...]:
    """Return the hash of each word: the same in every process, unlike `hash` of a text."""
    return tuple(crc32(word.encode(errors="surrogatepass")) for word in split_words(text))


def _grams(words: tuple[int, ...], size: int, step: int) -> Iterator[int]:
    for start in range(len(words) - size + 1):
        gram = hash(words[start : start + size])
        if gram % step == 0:
            yield gram
