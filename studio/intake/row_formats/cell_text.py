"""Convert values of a row to text, and join the texts of several columns."""

import json
import math
import re
from collections.abc import Mapping as Values
from datetime import date, time
from decimal import Decimal
from typing import Any

from studio.intake.mapping import Mapping
from studio.intake.problems import ProblemCode
from studio.intake.row_formats.schema import UnusableRowError

MEDIA_PART_TYPE = re.compile(
    r"(?:input_?)?(?:image|img|audio|video|file|document|media)(?:_?(?:url|file|data|asset))?s?"
)
"""Types of content parts that are not text: OpenAI's, Anthropic's, and those of processors."""
_TEXT_PART_TYPES = frozenset({"text", "input_text", "output_text", "refusal"})
_REASONING_PART_TYPES = frozenset({"thinking", "reasoning"})


class MappedRow:
    """A row as its mapping sees it: values by role, with replacements applied."""

    def __init__(self, mapping: Mapping, values: Values[str, Any]) -> None:
        self._mapping = mapping
        self._values = values

    def value(self, role: str) -> Any:  # noqa: ANN401 -- a value from a user's file
        """Return the value of the role's first column, or None."""
        columns = self._mapping.roles.get(role, [])
        return self._mapped_value(columns[0]) if columns else None

    def text(self, role: str) -> str:
        """Return the texts of the role's columns, joined.

        Raises:
            UnusableRowError: a value is not text.

        """
        return self.join(*map(self._mapped_value, self._mapping.roles.get(role, [])))

    def join(self, *values: Any) -> str:  # noqa: ANN401 -- values from a user's file
        return self._mapping.joiner.join(part for part in map(require_text, values) if part.strip())

    def _mapped_value(self, column: str) -> Any:  # noqa: ANN401 -- a value from a user's file
        value = self._values.get(column)
        replacements = self._mapping.values.get(column)
        return replacements.get(to_text(value), value) if replacements else value


def require_text(value: Any) -> str:  # noqa: ANN401 -- from a user's file
    """Return a value as text.

    Raises:
        UnusableRowError: it is not text.

    """
    match value:
        case None:
            return ""
        case str():
            return value
        case bool():
            raise UnusableRowError(ProblemCode.NOT_TEXT)
        case int() | float():
            # Tables store a missing number as NaN.
            return "" if value != value else str(value)  # noqa: PLR0124 -- only NaN differs from itself
        case Decimal() | date() | time():
            return str(value)
        # SQuAD has answers of several people; an unanswerable question has none.
        case {"text": [*answers], "answer_start": _}:
            return require_text(answers[0]) if answers else ""
    raise UnusableRowError(ProblemCode.NOT_TEXT)


def to_text(value: Any) -> str:  # noqa: ANN401 -- from a user's file
    """Return a value as text, as filters and replacements in a mapping compare it."""
    match value:
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case list() | dict():
            return _dump_json(value)
    try:
        return require_text(value)
    except UnusableRowError:
        return str(value)


def _dump_json(value: Any) -> str:  # noqa: ANN401 -- from a user's file
    try:
        return json.dumps(value, ensure_ascii=False, default=str)
    except RecursionError as error:
        raise UnusableRowError(ProblemCode.TOO_DEEP) from error
    except TypeError:
        # Maps in column-wise formats may have keys of any type.
        return str(value)


def is_number(text: str) -> bool:
    """Tell whether a text is a finite number."""
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def content_text(value: Any) -> str:  # noqa: ANN401 -- from a user's file
    """Return the text of a turn's content, which may consist of parts.

    Media parts are skipped: a row with media gets here only if just its text is used.

    Raises:
        UnusableRowError: a part is neither text nor media; the detail names its type.

    """
    if not isinstance(value, list):
        return require_text(value)
    return "".join(map(_part_text, value))


def reasoning_text(value: Any) -> str:  # noqa: ANN401 -- from a user's file
    """Return the reasoning among the parts of a turn: Anthropic's `thinking` blocks."""
    parts = value if isinstance(value, list) else []
    return "".join(
        part[key]
        for part in parts
        if isinstance(part, dict) and (key := part.get("type")) in _REASONING_PART_TYPES
        if isinstance(part.get(key), str)
    )


def _part_text(part: Any) -> str:  # noqa: ANN401 -- from a user's file
    match part:
        case str():
            return part
        case {"type": str() as kind} if kind in _REASONING_PART_TYPES or MEDIA_PART_TYPE.fullmatch(
            kind.lower()
        ):
            return ""
        case {"type": str() as kind} if kind not in _TEXT_PART_TYPES:
            raise UnusableRowError(ProblemCode.NOT_TEXT, kind[:100])
        case {"text": {"value": str() as text}}:
            return text
        case {"text": str() as text} | {"value": str() as text}:
            return text
        case {"content": str() as text} | {"refusal": str() as text}:
            return text
    raise UnusableRowError(ProblemCode.NOT_TEXT)


def parse_json_cell(cell: Any) -> Any:  # noqa: ANN401 -- from a user's file
    """Return the list or object in a cell that holds JSON; other values unchanged."""
    if not (isinstance(cell, str) and cell.lstrip()[:1] in {"[", "{"}):
        return cell
    try:
        return json.loads(cell)
    except (ValueError, RecursionError):
        return cell
