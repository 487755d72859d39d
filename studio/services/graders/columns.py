"""Columns of the rows: which one holds the expected answer, and what to reward it for."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from studio.graders.items import GradedRow
from studio.intake.row_formats.tasks import REFERENCE

DEFAULT = "answer"
"""The column that is named while the rows are unknown."""

_NAMES = (
    *(REFERENCE, "answer", "final_answer", "expected_answer", "expected", "solution", "target"),
    *("label", "ground_truth", "gold", "completion", "response", "output", "result"),
)
"""Columns with expected answers, likeliest first."""

_TEMPLATE = re.compile(r"\s*\{\{\s*item\.([^\W\d][\w-]*)\s*\}\}\s*")
_QUOTED = re.compile(r"\s*\{\{\s*item\[(\"[^\"]*\")\]\s*\}\}\s*")
_NUMBER = re.compile(r"[-+]?[$€£]?\d[\d,]*(\.\d+)?%?\.?")
_FEW_WORDS = 5


def list_columns(rows: Sequence[GradedRow]) -> list[str]:
    """Return the columns that rows have besides the prompt, in their order."""
    names = {name: None for row in rows for name in row.item if name != "messages"}
    return list(names)


def guess_answer(known: Sequence[str]) -> str:
    """Return the column that holds the expected answer, as far as names tell."""
    lowered = {name.lower(): name for name in reversed(known)}
    found = (lowered[name] for name in _NAMES if name in lowered)
    return next(found, known[-1] if known else DEFAULT)


def template(column: str) -> str:
    """Return what stands for a column in a grader."""
    if re.fullmatch(r"[^\W\d][\w-]*", column):
        return f"{{{{ item.{column} }}}}"
    return f"{{{{ item[{json.dumps(column, ensure_ascii=False)}] }}}}"


def read_template(text: str) -> str | None:
    """Return the column that a template stands for; None if it is anything else."""
    if match := _TEMPLATE.fullmatch(text):
        return match[1]
    if match := _QUOTED.fullmatch(text):
        return match[1].strip('"')
    return None


def guess_purpose(rows: Sequence[GradedRow]) -> str:
    """Return what answers to rows are best rewarded for, by their expected answers."""
    column = guess_answer(list_columns(rows))
    expected = [to_text(row.item, column) for row in rows]
    if not expected or all(not text for text in expected):
        return "length"
    if all(map(_ends_with_number, expected)):
        return "number"
    if all(map(_is_json, expected)):
        return "json"
    return "exact" if all(len(text.split()) <= _FEW_WORDS for text in expected) else "similar"


def to_text(item: Mapping[str, Any], column: str) -> str:
    """Return what a row has in a column; a number or a list as JSON."""
    value = item.get(column, "")
    return value.strip() if isinstance(value, str) else json.dumps(value)


def _ends_with_number(text: str) -> bool:
    return _NUMBER.fullmatch(text.rpartition("####")[2].strip()) is not None


def _is_json(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict | list)
    except (ValueError, RecursionError):
        return False
