"""Match columns with unknown names to shapes, by their values alone."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from studio.intake.detection.column_types import ColumnTable, is_label, is_numeric
from studio.intake.detection.name_heuristics import ShapeMatch, build_match

_MIN_LABEL_ROWS, _MAX_LABEL_VALUES = 20, 10
"""Minimum number of rows, and maximum number of distinct values, for a label column."""
_MAX_CLASS_WORDS = 3
"""Maximum number of words in a class."""


def match_by_values(table: ColumnTable) -> Iterator[ShapeMatch]:
    """Yield every match by column values, likeliest first."""
    yield from filter(None, (finder(table) for finder in _MATCHERS))


def _match_classification(table: ColumnTable) -> ShapeMatch | None:
    """Guess a label column by its values: few words, in many rows."""
    # Canned answers repeat like labels, but are sentences.
    texts = [name for name in table.text_columns() if not _is_class(table.columns[name])]
    labels = [
        name
        for name, values in table.columns.items()
        if name not in texts
        and len(values) >= _MIN_LABEL_ROWS
        and 1 < len(set(map(str, values))) <= _MAX_LABEL_VALUES
        and is_label(values)
    ]
    # A number may count anything, so it is a label only if no text column is one.
    labels = [name for name in labels if not is_numeric(table.columns[name])] or labels
    if len(texts) != 1 or len(labels) != 1:
        return None
    reason = f"Column {labels[0]} has few distinct values, which may be labels for {texts[0]}."
    return build_match("classification", reason, "guess", text=texts[0], label=labels[0])


def _is_class(values: Sequence[Any]) -> bool:
    return is_label(values) and max(len(str(value).split()) for value in values) <= _MAX_CLASS_WORDS


def _match_prompt_completion(table: ColumnTable) -> ShapeMatch | None:
    texts = table.text_columns()
    if len(texts) < 2:  # noqa: PLR2004 -- a question and an answer
        return None
    prompt, *others = texts
    answer = max(others, key=lambda name: sum(map(len, map(str, table.columns[name]))))
    reason = f"Columns {prompt} and {answer} hold text; the first one may be the question."
    return build_match("prompt_completion", reason, "guess", prompt=prompt, completion=answer)


def _match_text(table: ColumnTable) -> ShapeMatch | None:
    texts = table.text_columns()
    if len(texts) != 1:
        return None
    reason = f"Column {texts[0]} is the only text column."
    return build_match("text", reason, "guess", text=texts[0])


_MATCHERS: tuple[Callable[[ColumnTable], ShapeMatch | None], ...] = (
    _match_classification,
    _match_prompt_completion,
    _match_text,
)
