"""The columns of the first rows: names, values and value types."""

from collections.abc import Callable, Iterable, Sequence
from collections.abc import Mapping as Values
from dataclasses import dataclass
from typing import Any

from studio.intake.files.limits import MAX_COLUMNS
from studio.intake.mapping import MAX_COLUMN_NAME_CHARS, Mapping
from studio.intake.row_formats.message_formats import (
    MappedRow,
    is_number,
    parse_json_cell,
    parse_list_cell,
    to_text,
)
from studio.intake.row_formats.row_builder import parse_step_verdict
from studio.intake.row_formats.schema import MESSAGE_ROLES, UnusableRowError
from studio.intake.row_formats.tagged_words import (
    is_tag,
    list_items,
    read_spans,
    read_tagged_lines,
)

_MAJORITY = 0.8
"""The share of values that decides the type of a column."""
_NEARLY_ALL = 0.9
_FEW_ROWS = 20
"""In so few rows, labels may not repeat."""
_INDICATOR_VALUES = {"0", "1", "0.0", "1.0", "true", "false"}
_MAX_LABELS = 100
"""A column with more distinct values does not hold labels."""


@dataclass(frozen=True, slots=True)
class ColumnTable:
    """The first rows of a file."""

    rows: list[Values[str, Any]]
    columns: dict[str, list[Any]]
    """Values that are not null by column name, in the order of the file."""

    def find_column(self, names: Iterable[str]) -> str | None:
        """Return the column with the first of these names that exists. Case-insensitive."""
        by_habit = {name.strip().lower(): name for name in reversed(self.columns)}
        return next((by_habit[name] for name in names if name in by_habit), None)

    def text_columns(self) -> list[str]:
        """Return the columns that hold text."""
        return [name for name, values in self.columns.items() if is_text(values)]


def build_table(rows: Iterable[Values[str, Any]]) -> ColumnTable:
    table_rows: list[Values[str, Any]] = []
    columns: dict[str, list[Any]] = {}
    for row in rows:
        table_rows.append(row)
        for column, value in row.items():
            if column in columns or (
                len(columns) < MAX_COLUMNS and 0 < len(column) <= MAX_COLUMN_NAME_CHARS
            ):
                values = columns.setdefault(column, [])
                values.extend([] if value is None or value == "" else [value])
    return ColumnTable(table_rows, columns)


def is_text(values: Sequence[Any]) -> bool:
    return _holds_for_most(values, lambda value: isinstance(value, str) and not is_number(value))


def is_numeric(values: Sequence[Any]) -> bool:
    return _holds_for_most(values, _is_numeric)


def _is_numeric(value: Any) -> bool:  # noqa: ANN401 -- from a user's file
    scalar = isinstance(value, str | int | float) and not isinstance(value, bool)
    return scalar and is_number(to_text(value))


def is_boolean(values: Sequence[Any]) -> bool:
    """Tell whether all values are true or false."""
    words = {"true", "false"}
    return bool(values) and all(
        isinstance(value, bool | str) and to_text(value).lower() in words for value in values
    )


def is_label(values: Sequence[Any]) -> bool:
    """Tell whether there are few distinct values, each of them short."""
    scalars = [to_text(value) for value in values if isinstance(value, str | int | float)]
    distinct = set(scalars)
    has_few_values = 0 < len(distinct) <= min(_MAX_LABELS, max(2, len(scalars) // 2))
    return has_few_values and len(scalars) == len(values) and max(map(len, distinct)) <= _MAX_LABELS


def is_label_list(values: Sequence[Any]) -> bool:
    """Tell whether most values are lists of labels, of which there are few."""
    lists = [found for value in values if isinstance(found := parse_list_cell(value), list)]
    items = [item for found in lists for item in found]
    if len(lists) < _MAJORITY * len(values) or not items:
        return False
    # Most texts have one label or two, so labels repeat less often than single ones.
    return is_label(items) or (len(values) < _FEW_ROWS and is_label([*items, *items]))


def is_indicator(values: Sequence[Any]) -> bool:
    """Tell whether all values are 0 or 1, or true or false."""
    return bool(values) and {to_text(value).lower() for value in values} <= _INDICATOR_VALUES


def holds_message_lists(values: Sequence[Any], *keys: str) -> bool:
    """Tell whether most values are lists of objects with these keys."""
    return _holds_for_most(values, lambda value: _first_item_has_keys(parse_json_cell(value), keys))


def hold_prompts(values: Sequence[Any]) -> bool:
    """Tell whether nearly all values are lists of turns that end with the user's."""
    ends = sum(_ends_with_user(parse_json_cell(value)) for value in values)
    return bool(values) and ends >= _NEARLY_ALL * len(values)


def _ends_with_user(value: Any) -> bool:  # noqa: ANN401 -- from a user's file
    match value:
        case [*_, {"role": str() as role}] | [*_, {"from": str() as role}]:
            return MESSAGE_ROLES.get(role.strip().lower()) == "user"
    return False


def holds_answer_lists(values: Sequence[Any]) -> bool:
    """Tell whether most values are lists of several answers: texts, or objects with a text."""
    return _holds_for_most(values, lambda value: _is_answer_list(parse_json_cell(value)))


def holds_rated_steps(table: ColumnTable, steps: str, verdicts: str) -> bool:
    """Tell whether most rows have a list of texts, and as many verdicts on them."""
    pairs = [
        (parse_json_cell(row.get(steps)), parse_json_cell(row.get(verdicts))) for row in table.rows
    ]
    return _holds_for_most(pairs, _is_rated)


def holds_tagged_words(table: ColumnTable, words: str, tags: str) -> bool:
    """Tell whether most rows have a list of words, and as many tags."""
    mapping = Mapping(shape="words", roles={"words": [words], "tags": [tags]})
    return _holds_for_most(table.rows, lambda row: _are_tagged(MappedRow(mapping, row)))


def _are_tagged(cells: MappedRow) -> bool:
    try:
        words, tags = list_items(cells, "words"), list_items(cells, "tags")
    except UnusableRowError:
        return False
    return len(words) == len(tags) and all(map(_is_scalar, [*words, *tags]))


def _is_scalar(value: Any) -> bool:  # noqa: ANN401 -- from a user's file
    return isinstance(value, str | int) and not isinstance(value, bool)


def holds_spans(values: Sequence[Any]) -> bool:
    """Tell whether most values are lists of entities with a start, an end and a label."""
    return _holds_for_most(values, _are_spans) and any(map(parse_list_cell, values))


def _are_spans(value: Any) -> bool:  # noqa: ANN401 -- from a user's file
    try:
        return isinstance(list(read_spans(value)), list)
    except UnusableRowError:
        return False


def holds_tagged_lines(values: Sequence[Any]) -> bool:
    """Tell whether most values are lines that each end in a tag."""
    return _holds_for_most(values, _are_tagged_lines)


def _are_tagged_lines(value: Any) -> bool:  # noqa: ANN401 -- from a user's file
    lines = list(read_tagged_lines(value)) if isinstance(value, str) else []
    return bool(lines) and all(len(line) > 1 and is_tag(line[-1]) for line in lines)


def _is_rated(pair: tuple[Any, Any]) -> bool:
    match pair:
        case ([str(), *_] as texts, [*rated]) if len(texts) == len(rated):
            return all(parse_step_verdict(one) is not None for one in rated)
    return False


def holds_squad_answers(values: Sequence[Any]) -> bool:
    """Tell whether most values are SQuAD answers: texts and where they start."""
    return _holds_for_most(values, lambda value: _is_squad_answer(parse_json_cell(value)))


def _is_squad_answer(value: Any) -> bool:  # noqa: ANN401 -- from a user's file
    match value:
        case {"text": [*_], "answer_start": _}:
            return True
    return False


def _first_item_has_keys(value: Any, keys: Sequence[str]) -> bool:  # noqa: ANN401 -- from a user's file
    match value:
        case [{**turn}, *_]:
            return set(keys) <= set(turn)
    return False


def _is_answer_list(value: Any) -> bool:  # noqa: ANN401 -- from a user's file
    match value:
        case [str(), str(), *_]:
            return True
        case [{**one}, {}, *_]:
            return not {"role", "from"} & set(one)
    return False


def _holds_for_most(values: Sequence[Any], holds: Callable[[Any], bool]) -> bool:
    return bool(values) and sum(map(holds, values)) >= _MAJORITY * len(values)
