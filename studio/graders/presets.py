"""Graders for what OpenAI has no type for, as `python` grader with a program that is written here.

A type of the studio's own would be refused by OpenAI's API and by every tool that reads its format.
A program is understood by both, can be read and changed by people, and runs in the seal: a regular
expression that never ends is stopped like any other program. The programs import nothing but the
standard library, and return 1.0 or 0.0, or a number between them.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

from studio.errors import InvalidError
from studio.evaluation.answer_rules import UNSPACED_SCRIPTS
from studio.evaluation.text_scores import FINAL_ANSWER, NUMBER
from studio.graders import programs
from studio.graders.schema import PythonGrader
from studio.graders.templates import parse_path

THINK_PATTERN = r"<think>(?!.*<think>).*?</think>.*"
"""An answer that thinks first, once, as `think_format_reward` of TRL reads it."""

_SCHEMA_KEYWORDS = frozenset(
    {
        *("type", "enum", "const", "allOf", "anyOf", "properties", "required"),
        *("additionalProperties", "items", "minItems", "maxItems", "minLength", "maxLength"),
        *("pattern", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
        *("title", "description", "default", "examples", "$schema", "$id", "$comment"),
    }
)
"""What `programs.JSON_SCHEMA` understands; the last seven say nothing about a value."""
_TYPES = ("object", "array", "string", "boolean", "null", "number", "integer")
_KINDS: dict[Any, str] = {
    str: "text",
    Mapping: "an object",
    list: "a list",
    (str, list): "text or a list",
    (int, float): "a number",
}
_KEYWORD_TYPES: dict[str, Any] = {
    "type": (str, list),
    "pattern": str,
    "properties": Mapping,
    **dict.fromkeys(("enum", "allOf", "anyOf", "required"), list),
    **dict.fromkeys(("minItems", "maxItems", "minLength", "maxLength"), (int, float)),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), (int, float)),
}


def match_pattern(
    name: str, pattern: str, *, is_whole: bool = False, ignore_case: bool = False
) -> PythonGrader:
    """Return a grader that is 1 if a regular expression matches in the answer, or all of it.

    Raises:
        InvalidError: the expression cannot be read.

    """
    _check_pattern(pattern, "pattern")
    flags = "re.DOTALL | re.IGNORECASE" if ignore_case else "re.DOTALL"
    method = "fullmatch" if is_whole else "search"
    return _build(name, programs.MATCH.format(pattern=pattern, flags=flags, method=method))


def text_equals(
    name: str,
    reference: str,
    *,
    ignore_case: bool = False,
    ignore_spaces: bool = False,
    ignore_stop: bool = False,
) -> PythonGrader:
    """Return a grader that is 1 if the answer equals a column, apart from what is ignored.

    `reference` is a path such as `item.answer`. Spaces are ignored at both ends, and count once
    between words. A stop is ignored at the end.

    Raises:
        InvalidError: the path is none of the row.

    """
    path = _parse_item_path(reference)
    flags = {"case": ignore_case, "spaces": ignore_spaces, "stop": ignore_stop}
    return _build(name, programs.EQUAL.format(path=path, **flags))


def think_format(name: str) -> PythonGrader:
    """Return a grader that is 1 if an answer thinks between `<think>` and `</think>` first."""
    return match_pattern(name, THINK_PATTERN, is_whole=True)


def length_between(
    name: str, low: int, high: int, *, unit: Literal["words", "characters"], margin: int = 0
) -> PythonGrader:
    """Return a grader that is 1 for lengths from `low` to `high`.

    Outside it falls to 0 over `margin` units. Each character of a script without spaces is a word.

    Raises:
        InvalidError: no length is within these limits.

    """
    if not 0 <= low <= high or margin < 0:
        raise InvalidError("The shortest length must be at most the longest.", param="low")
    words = rf"[{UNSPACED_SCRIPTS}]|[^\W_{UNSPACED_SCRIPTS}]+"
    pattern = words if unit == "words" else "."
    return _build(name, programs.LENGTH.format(unit=pattern, low=low, high=high, margin=margin))


def number_equals(name: str, reference: str, *, tolerance: float = 0.0) -> PythonGrader:
    """Return a grader that is 1 if the last number of the answer is that of a column.

    `reference` is a path such as `item.answer`. Of texts with `####`, as in gsm8k, only what
    follows counts. A row without a number is an error, not a 0.

    Raises:
        InvalidError: the path is none of the row.

    """
    path = _parse_item_path(reference)
    body = programs.NUMBER.format(
        pattern=NUMBER.pattern, path=path, tolerance=str(tolerance), marker=FINAL_ANSWER
    )
    return _build(name, body)


def _parse_item_path(reference: str) -> list[str | int]:
    try:
        namespace, path = parse_path(reference)
    except ValueError as error:
        raise InvalidError(str(error), param="reference") from error
    if namespace != "item":
        raise InvalidError(
            "The answer is compared with a column of the row: item.…", param="reference"
        )
    return path


def json_valid(name: str, keys: Collection[str] = ()) -> PythonGrader:
    """Return a grader that is 1 for a JSON object or array; with keys, for an object with them."""
    return _build(name, programs.JSON.format(keys=list(keys)))


def json_schema(name: str, schema: Mapping[str, Any]) -> PythonGrader:
    """Return a grader that is 1 if the answer is JSON that fits a schema.

    Raises:
        InvalidError: the schema has a keyword that the grader does not understand.

    """
    _check_schema(schema, "schema")
    return _build(name, programs.JSON_SCHEMA.format(schema=dict(schema)))


def _check_schema(schema: object, path: str) -> None:
    if isinstance(schema, bool):
        return
    if not isinstance(schema, Mapping):
        raise InvalidError(f"{path}: Must be an object with fields.", param=path)
    _check_keywords(schema, path)
    for keyword, inner in _inner_schemas(schema):
        _check_schema(inner, f"{path}.{keyword}")


def _check_keywords(schema: Mapping[str, Any], path: str) -> None:
    """Check what the program takes for granted."""
    for keyword in schema:
        if keyword not in _SCHEMA_KEYWORDS:
            known = ", ".join(sorted(_SCHEMA_KEYWORDS))
            raise InvalidError(
                f"{path}: The keyword {str(keyword)[:40]} cannot be checked.",
                hint=f"Use one of these: {known}.",
                param=path,
            )
        kinds = _KEYWORD_TYPES.get(keyword)
        if kinds and (not isinstance(schema[keyword], kinds) or isinstance(schema[keyword], bool)):
            raise InvalidError(f"{path}.{keyword}: Must be {_KINDS[kinds]}.", param=path)
    names = schema.get("type", [])
    for name in [names] if isinstance(names, str) else names:
        if name not in _TYPES:
            message = f"{path}.type: Must be one of {', '.join(_TYPES)}."
            raise InvalidError(message, param=f"{path}.type")
    if "pattern" in schema:
        _check_pattern(schema["pattern"], f"{path}.pattern")


def _check_pattern(pattern: str, path: str) -> None:
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise InvalidError(f"{path}: No regular expression: {error}.", param=path) from error


def _inner_schemas(schema: Mapping[str, Any]) -> Sequence[tuple[str, object]]:
    single = [(name, schema[name]) for name in ("items", "additionalProperties") if name in schema]
    listed = [
        (f"{name}.{place}", inner)
        for name in ("allOf", "anyOf")
        for place, inner in enumerate(schema.get(name, []))
    ]
    named = [(f"properties.{key}", inner) for key, inner in schema.get("properties", {}).items()]
    return [*single, *listed, *named]


def _build(name: str, source: str) -> PythonGrader:
    return PythonGrader(name=name, type="python", source=source.lstrip())
