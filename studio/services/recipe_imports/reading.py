"""Read another tool's file: its keys, and which tool it is for."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from studio.errors import InvalidError
from studio.recipe import yaml
from studio.services.recipe_imports.table import Tool
from studio.services.recipe_imports.tools import TOOLS

MAX_CHARS = 100_000
"""Most characters of a file. The longest that these tools write have about ten thousand."""
_SHOWN_CHARS = 120
_OWN_MARKS = frozenset({"optimisation", "evaluation", "early_stopping", "samples", "numerics"})
"""Sections of the studio's own recipes."""


def parse(text: str) -> dict[str, Any]:
    """Return the values of a file, which may be YAML or JSON.

    Raises:
        InvalidError: It is neither, or too long.

    """
    if len(text) > MAX_CHARS:
        raise InvalidError(f"Such a file has at most {MAX_CHARS:,} characters.", param="text")
    values = _load(text)
    if not _is_small(values):
        raise InvalidError("The aliases of this file repeat it too often.", param="text")
    if not _is_text(_whole_text(values)):
        raise InvalidError("This file has characters that are not text.", param="text")
    return values


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # Half of a character, as YAML and JSON can write it.
        return False
    return True


def _load(text: str) -> dict[str, Any]:
    """Read JSON as JSON: YAML would take the halves of some characters apart."""
    problem = ""
    try:
        if isinstance(values := json.loads(text), dict):
            return values
    except (ValueError, RecursionError):  # It is no JSON.
        pass
    try:
        return yaml.load(text)
    except InvalidError as error:
        problem = error.message
    except ValueError as error:  # A date that does not exist, for example.
        problem = f"A value in this file is not valid: {error}."
    hint = "The file has to be YAML or JSON, with a line for each setting."
    raise InvalidError(problem, hint=hint, param="text")


def _is_small(values: object) -> bool:
    """Whether values are not too many, with everything that YAML aliases repeat."""
    try:
        return _count(values, {}) <= 10 * MAX_CHARS
    except RecursionError:  # It holds itself, or is nested too deeply.
        return False


def _count(value: object, counts: dict[int, int]) -> int:
    """Count the characters of a value; `counts` has those of groups, by their ids."""
    if not isinstance(value, Mapping | list | tuple | set):
        return len(value) if isinstance(value, str | bytes) else 1
    if id(value) not in counts:
        pairs = value.items() if isinstance(value, Mapping) else enumerate(value)
        counts[id(value)] = sum(1 + _count(inner, counts) for _name, inner in pairs)
    return counts[id(value)]


def detect(values: Mapping[str, Any]) -> Tool:
    """Return the tool that a file is for.

    Raises:
        InvalidError: It is for none of the tools, or it is a recipe of the studio.

    """
    if isinstance(values.get("optimisation"), Mapping) or len(_OWN_MARKS & values.keys()) > 1:
        raise InvalidError(
            "This is a recipe of the studio itself.",
            hint="Paste it into the form of a new experiment.",
            param="text",
        )
    best = max(TOOLS.values(), key=lambda tool: _score(values, tool))
    if not _score(values, best)[0]:
        titles = ", ".join(tool.title for tool in TOOLS.values())
        raise InvalidError(
            f"This file is for none of the tools that are known here: {titles}.",
            hint="Choose the file with the settings of the training.",
            param="text",
        )
    return best


def iter_keys(values: Mapping[str, Any], tool: Tool) -> Iterator[tuple[str, Any]]:
    """Yield each key with its value. Groups are entered only if the tool's table has keys in them.

    So each key is visited once, however deeply and often YAML aliases refer to each other.
    """
    yield from _iter_keys(values, "", frozenset(tool.table))


def _iter_keys(
    values: Mapping[Any, Any], prefix: str, known: frozenset[str]
) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        key = f"{prefix}{name}"
        has_inner = any(row.startswith(f"{key}.") for row in known)
        if key not in known and has_inner and isinstance(value, Mapping) and value:
            yield from _iter_keys(value, f"{key}.", known)
        else:
            yield key, value


def _score(values: Mapping[str, Any], tool: Tool) -> tuple[int, int]:
    """Return how many keys only this tool has, and how many it knows at all."""
    keys = {key for key, _value in iter_keys(values, tool)} | values.keys()
    return len(keys & tool.marks), len(keys & tool.table.keys())


def short_text(value: object) -> str:
    """Return a value in one short line."""
    line = " ".join(_whole_text(value).split())
    return line if len(line) <= _SHOWN_CHARS else f"{line[:_SHOWN_CHARS]}…"


def _whole_text(value: object) -> str:
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False, default=str)
    except (ValueError, TypeError):  # Keys that are no text.
        return str(value)
