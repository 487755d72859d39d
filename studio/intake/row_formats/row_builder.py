"""One row as it is kept: a conversation, a text, a preference or a judged answer."""

import json
from collections.abc import Callable
from collections.abc import Mapping as Values
from typing import Any

from studio.intake.mapping import Mapping, ShapeName
from studio.intake.problems import Code
from studio.intake.row_formats import conversations, preferences
from studio.intake.row_formats.cell_text import Cells
from studio.intake.row_formats.schema import CanonicalRow, TextRow, UnusableRowError

_BUILDERS: dict[ShapeName, Callable[[Cells, str], CanonicalRow]] = {
    "alpaca": conversations.alpaca,
    "prompt_completion": conversations.pair,
    "messages": conversations.listed,
    "sharegpt": conversations.listed,
    "classification": conversations.labelled,
    "regression": conversations.measured,
    "preference": preferences.preference,
    "ranked": preferences.ranked,
    "judged": preferences.judged,
}
_WRITER = json.JSONEncoder(ensure_ascii=False, allow_nan=False)


def canonical(mapping: Mapping, values: Values[str, Any]) -> CanonicalRow:
    """Return a row as it is kept. The rows of threads are joined by `threads`, not here.

    Raises:
        UnusableRowError: something is missing in it, or is not what it should be.

    """
    cells = Cells(mapping, values)
    if mapping.shape == "text":
        return _text(cells)
    return _BUILDERS[mapping.shape](cells, mapping.system)


def encoded(row: CanonicalRow) -> bytes:
    """Return the line that is kept: the same row always makes the same line.

    Raises:
        UnusableRowError: it holds what JSON or UTF-8 cannot.

    """
    try:
        return _WRITER.encode(row).encode() + b"\n"
    except UnicodeEncodeError as error:
        raise UnusableRowError(Code.BROKEN_CHARACTER) from error
    except RecursionError as error:
        raise UnusableRowError(Code.TOO_DEEP) from error
    except ValueError as error:
        raise UnusableRowError(Code.NOT_FINITE) from error
    except TypeError as error:
        raise UnusableRowError(Code.NOT_TEXT) from error


def _text(cells: Cells) -> TextRow:
    written = cells.text("text")
    if not written.strip():
        raise UnusableRowError(Code.NO_TEXT)
    return {"text": written}
