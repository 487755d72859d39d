"""What the last answers of a dataset are: labels, numbers or free text.

Methods that learn labels or numbers decide by this whether they can train on it.
"""

from array import array
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import quantiles
from typing import Any

from studio.intake.quality.row_checks import last_answer
from studio.intake.row_formats.message_formats import is_number
from studio.intake.row_formats.tagged_words import OUTSIDE

MAX_LABELS = 1000
"""With more distinct answers, they are no labels."""
FEW_ROWS = 5
"""A label with fewer training rows is hardly learned."""
_SURE_ROWS = 4
"""Rows per label, on average, of what is surely no free text."""
_MAX_LABEL_CHARS = 200
_FAR = 10
_MIN_QUARTILES = 20
"""Rows of which quartiles mean something."""
_NAMED = 5
"""Labels that a sentence names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerFacts:
    """What the last answers of one part of a dataset are."""

    rows: int = 0
    """Rows that are conversations, texts with tagged words, or pairs of texts."""
    labels: Mapping[str, int] = field(default_factory=dict)
    """How many rows have each label; empty if there are more than `MAX_LABELS`."""
    has_several: bool = False
    """Whether some rows list several labels, or none."""
    numbers: int = 0
    """Rows whose answer is a number, or holds numbers by name."""
    targets: tuple[str, ...] = ()
    """The names of these numbers, as far as they have any."""
    constant: tuple[str, ...] = ()
    """Those that are the same in all rows."""
    tags: Mapping[str, int] = field(default_factory=dict)
    """How many words have each tag, if each word of a text has one."""
    scored: int = 0
    """Pairs of texts that say how alike these are."""
    negatives: int = 0
    """The most texts of a row that do not match its first one."""


@dataclass(slots=True)
class AnswerCounter:
    """Collects the facts of a part, row by row."""

    rows: int = 0
    labels: Counter[str] | None = field(default_factory=Counter)
    has_several: bool = False
    numbers: int = 0
    values: dict[str, "array[float]"] = field(default_factory=dict)
    """The numbers of the rows that have any, by name; an answer that is a number has no name."""
    tags: Counter[str] = field(default_factory=Counter)
    scored: int = 0
    negatives: int = 0

    def add(self, row: Mapping[str, Any]) -> None:
        if "tags" in row:
            self.rows += 1
            self.tags.update(row["tags"])
        if "anchor" in row:
            self.rows += 1
            self.scored += "score" in row
            self.negatives = max(self.negatives, len(row.get("negatives", ())))
        if "text" in row or "rejected" in row or "item" in row or "anchor" in row:
            return
        self.rows += 1
        answer = last_answer(row).strip()
        listed: list[str] | None = row.get("labels")
        numbers: dict[str, float] = row.get("numbers", {})
        if not numbers and is_number(answer):
            numbers = {"": float(answer)}
        self.numbers += bool(numbers)
        for name, number in numbers.items():
            self.values.setdefault(name, array("d")).append(number)
        if listed is not None and len(listed) != 1:
            self.has_several = True
        self._add_labels([answer] if listed is None else listed)

    def _add_labels(self, labels: list[str]) -> None:
        if self.labels is None:
            return
        self.labels.update(labels)
        if len(self.labels) > MAX_LABELS or any(map(_is_long, labels)):
            self.labels = None

    def facts(self) -> AnswerFacts:
        return AnswerFacts(
            rows=self.rows,
            labels=dict((self.labels or Counter()).most_common()),
            has_several=self.has_several,
            numbers=self.numbers,
            targets=tuple(filter(None, self.values)),
            constant=tuple(
                name for name, values in self.values.items() if len(values) > 1 and _is_flat(values)
            ),
            scored=self.scored,
            negatives=self.negatives,
            tags=dict(self.tags.most_common(2 * MAX_LABELS + 1)),
        )

    def outliers(self) -> dict[str, list[int]]:
        """Return the rows whose numbers are far from all others, by the names of these numbers.

        Far is more than `_FAR` interquartile ranges from the quartiles. Empty unless all rows have
        all numbers.
        """
        found: dict[str, list[int]] = {}
        for name, values in self.values.items():
            if len(values) != self.rows or self.rows < _MIN_QUARTILES:
                continue
            low, _median, high = quantiles(values, n=4)
            reach = _FAR * (high - low)
            rows = [
                row
                for row, value in enumerate(values, 1)
                if reach and not low - reach <= value <= high + reach
            ]
            found |= {name: rows} if rows else {}
        return found


def _is_flat(values: "array[float]") -> bool:
    return min(values) == max(values)


def _is_long(label: str) -> bool:
    return len(label) > _MAX_LABEL_CHARS


def max_labels(rows: int) -> int:
    """Return how many distinct labels a number of rows can teach: two rows each on average."""
    return min(MAX_LABELS, max(rows // 2, 2))


def label_problem(facts: AnswerFacts) -> str:
    """Return why the answers are no labels to learn, or ""."""
    if not facts.rows:
        return "These rows have no labels."
    if not facts.labels or len(facts.labels) > max_labels(facts.rows):
        return "The answers of this dataset are no labels: too many of them are different."
    if len(facts.labels) == 1 and not facts.has_several:
        return f'All rows have the label "{next(iter(facts.labels))}".'
    return ""


def are_classes(facts: AnswerFacts) -> bool:
    """Whether the answers repeat so often that they are surely labels."""
    return not label_problem(facts) and len(facts.labels) * _SURE_ROWS <= facts.rows


def number_problem(facts: AnswerFacts) -> str:
    """Return why the answers are no numbers to learn, or ""."""
    if facts.rows and facts.numbers == facts.rows:
        if not facts.constant:
            return ""
        named = shorten([f'"{name}"' for name in facts.constant if name])
        return f"A number is the same in all rows: {named or 'the answer'}."
    if not facts.numbers:
        return "The answers of this dataset are no numbers."
    return f"{facts.rows - facts.numbers:,} of {facts.rows:,} answers are no numbers."


def tag_problem(facts: AnswerFacts) -> str:
    """Return why the tags of words are nothing to learn, or ""."""
    if set(facts.tags) <= {OUTSIDE}:
        return "No word of these texts is marked as an entity."
    if len(facts.tags) == 1:
        (tag,) = facts.tags
        return f'All words have the tag "{tag}".'
    if len(facts.tags) > 2 * MAX_LABELS:
        return f"The entities have more than {MAX_LABELS:,} different labels."
    return ""


def shorten(labels: list[str]) -> str:
    """Return the first labels, for a sentence."""
    return ", ".join(labels[:_NAMED]) + (", …" if len(labels) > _NAMED else "")
