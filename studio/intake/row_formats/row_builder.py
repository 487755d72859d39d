"""Build and encode a canonical row: a conversation, text, preference or rated answer."""

import json
from collections.abc import Callable
from collections.abc import Mapping as Values
from typing import Any

from studio.intake.mapping import Mapping, ShapeName
from studio.intake.problems import ProblemCode
from studio.intake.row_formats import conversations, preferences
from studio.intake.row_formats.cell_text import MappedRow
from studio.intake.row_formats.schema import CanonicalRow, TextRow, UnusableRowError

_BUILDERS: dict[ShapeName, Callable[[MappedRow, str], CanonicalRow]] = {
    "alpaca": conversations.build_alpaca,
    "prompt_completion": conversations.build_prompt_completion,
    "messages": conversations.build_messages,
    "sharegpt": conversations.build_messages,
    "classification": conversations.build_classification,
    "regression": conversations.build_regression,
    "preference": preferences.build_preference,
    "ranked": preferences.build_ranked,
    "judged": preferences.build_judged,
}
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False)


def build_row(mapping: Mapping, values: Values[str, Any]) -> CanonicalRow:
    """Return a canonical row. Rows of threads are joined in `threads`, not here.

    Raises:
        UnusableRowError: a value is missing or has the wrong type.

    """
    cells = MappedRow(mapping, values)
    if mapping.shape == "text":
        return _build_text_row(cells)
    return _BUILDERS[mapping.shape](cells, mapping.system)


def encode_row(row: CanonicalRow) -> bytes:
    """Return the line of JSON to store: the same row always gives the same line.

    Raises:
        UnusableRowError: a value cannot be represented in JSON or UTF-8.

    """
    try:
        return _ENCODER.encode(row).encode() + b"\n"
    except UnicodeEncodeError as error:
        raise UnusableRowError(ProblemCode.BROKEN_CHARACTER) from error
    except RecursionError as error:
        raise UnusableRowError(ProblemCode.TOO_DEEP) from error
    except ValueError as error:
        raise UnusableRowError(ProblemCode.NOT_FINITE) from error
    except TypeError as error:
        raise UnusableRowError(ProblemCode.NOT_TEXT) from error


def _build_text_row(cells: MappedRow) -> TextRow:
    text = cells.text("text")
    if not text.strip():
        raise UnusableRowError(ProblemCode.NO_TEXT)
    return {"text": text}
