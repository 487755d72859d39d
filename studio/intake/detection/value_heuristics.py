"""How rows could be read whose columns have names of their own: guessed from the values alone."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from studio.intake.detection.column_types import Table, is_label, is_numeric
from studio.intake.detection.name_heuristics import Found, found_in

_MANY, _FEW = 20, 10
"""Rows, and different values in them, that make a column a label."""
_WORDS = 3
"""A class has no more words than that."""


def guessed(table: Table) -> Iterator[Found]:
    """Yield every way to read the rows by what their columns hold, the likeliest first."""
    yield from filter(None, (finder(table) for finder in _FINDERS))


def _label(table: Table) -> Found | None:
    """Guess a label by its values alone: few words, in many rows."""
    # Canned answers repeat as labels do, but are sentences.
    texts = [name for name in table.texts() if not _is_class(table.columns[name])]
    labels = [
        name
        for name, values in table.columns.items()
        if name not in texts
        and len(values) >= _MANY
        and 1 < len(set(map(str, values))) <= _FEW
        and is_label(values)
    ]
    # A number may count anything, so it is a label only where no column of words is.
    labels = [name for name in labels if not is_numeric(table.columns[name])] or labels
    if len(texts) != 1 or len(labels) != 1:
        return None
    why = f"The column {labels[0]} has few different values, which may be labels of {texts[0]}."
    return found_in("classification", why, "guess", text=texts[0], label=labels[0])


def _is_class(values: Sequence[Any]) -> bool:
    return is_label(values) and max(len(str(value).split()) for value in values) <= _WORDS


def _pair(table: Table) -> Found | None:
    texts = table.texts()
    if len(texts) < 2:  # noqa: PLR2004 -- a question and an answer
        return None
    prompt, *others = texts
    answer = max(others, key=lambda name: sum(map(len, map(str, table.columns[name]))))
    why = f"The columns {prompt} and {answer} hold texts; that the first asks is a guess."
    return found_in("prompt_completion", why, "guess", prompt=prompt, completion=answer)


def _text(table: Table) -> Found | None:
    texts = table.texts()
    if len(texts) != 1:
        return None
    why = f"The column {texts[0]} is the only one that holds text."
    return found_in("text", why, "guess", text=texts[0])


_FINDERS: tuple[Callable[[Table], Found | None], ...] = (_label, _pair, _text)
