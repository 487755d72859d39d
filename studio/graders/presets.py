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
from studio.graders.schema import PythonGrader
from studio.graders.templates import parse_path

THINK_PATTERN = r"<think>(?!.*<think>).*?</think>.*"
"""An answer that thinks first, once, as `think_format_reward` of TRL reads it."""

_MATCH = """
import re

PATTERN = re.compile({pattern!r}, {flags})


def grade(sample, item):
    return 1.0 if PATTERN.{method}(sample["output_text"]) else 0.0
"""

_LENGTH = """
import re

UNIT = re.compile({unit!r}, re.DOTALL)
LOW, HIGH, MARGIN = {low!r}, {high!r}, {margin!r}


def grade(sample, item):
    length = len(UNIT.findall(sample["output_text"]))
    outside = max(LOW - length, length - HIGH, 0)
    return max(0.0, 1.0 - outside / (MARGIN + 1))
"""

_NUMBER = """
import re
import unicodedata
from decimal import Decimal

NUMBER = re.compile({pattern!r}, re.IGNORECASE)
PATH = {path!r}
TOLERANCE = Decimal({tolerance!r})


def last_number(text):
    result = unicodedata.normalize("NFKC", text).rpartition({marker!r})[2]
    plain = result.replace("$", "").replace("\\N{{MINUS SIGN}}", "-")
    numbers = NUMBER.findall(plain)
    return Decimal(numbers[-1].replace(",", "")) if numbers else None


def grade(sample, item):
    expected = item
    for step in PATH:
        expected = expected[step]
    number, expected = last_number(sample["output_text"]), last_number(str(expected))
    if expected is None:
        raise ValueError("the row has no number to compare with")
    return 1.0 if number is not None and abs(number - expected) <= TOLERANCE else 0.0
"""

_JSON = """
import json

KEYS = {keys!r}


def refuse(name):
    raise ValueError(name)


def grade(sample, item):
    try:
        value = json.loads(sample["output_text"], parse_constant=refuse)
    except (ValueError, RecursionError):
        return 0.0
    if not isinstance(value, (dict, list)):
        return 0.0
    return 1.0 if not KEYS or isinstance(value, dict) and all(key in value for key in KEYS) else 0.0
"""

_JSON_SCHEMA = """
import json
import re

SCHEMA = {schema!r}
TYPES = {{
    "object": dict, "array": list, "string": str, "boolean": bool, "null": type(None),
    "number": (int, float), "integer": (int, float),
}}


def is_type(value, name):
    if name in ("number", "integer") and isinstance(value, bool):
        return False
    if name == "integer" and isinstance(value, float) and not value.is_integer():
        return False
    return isinstance(value, TYPES[name])


def is_equal(one, other):
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def fits(value, schema):
    if isinstance(schema, bool):
        return schema
    names = schema.get("type", [])
    names = [names] if isinstance(names, str) else names
    return (
        (not names or any(is_type(value, name) for name in names))
        and ("const" not in schema or is_equal(value, schema["const"]))
        and ("enum" not in schema or any(is_equal(value, one) for one in schema["enum"]))
        and all(fits(value, one) for one in schema.get("allOf", []))
        and ("anyOf" not in schema or any(fits(value, one) for one in schema["anyOf"]))
        and (not isinstance(value, dict) or fits_object(value, schema))
        and (not isinstance(value, list) or fits_list(value, schema))
        and (not isinstance(value, str) or fits_text(value, schema))
        and (not is_type(value, "number") or fits_number(value, schema))
    )


def fits_object(value, schema):
    known, others = schema.get("properties", {{}}), schema.get("additionalProperties", True)
    return all(key in value for key in schema.get("required", [])) and all(
        fits(one, known.get(key, others)) for key, one in value.items()
    )


def fits_list(value, schema):
    return schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)) and all(
        fits(one, schema.get("items", True)) for one in value
    )


def fits_text(value, schema):
    size = len(value)
    return schema.get("minLength", 0) <= size <= schema.get("maxLength", size) and (
        "pattern" not in schema or re.search(schema["pattern"], value) is not None
    )


def fits_number(value, schema):
    return (
        schema.get("minimum", value) <= value <= schema.get("maximum", value)
        and ("exclusiveMinimum" not in schema or value > schema["exclusiveMinimum"])
        and ("exclusiveMaximum" not in schema or value < schema["exclusiveMaximum"])
    )


def refuse(name):
    raise ValueError(name)


def grade(sample, item):
    try:
        value = json.loads(sample["output_text"], parse_constant=refuse)
    except (ValueError, RecursionError):
        return 0.0
    return 1.0 if fits(value, SCHEMA) else 0.0
"""

_SCHEMA_KEYWORDS = frozenset(
    {
        *("type", "enum", "const", "allOf", "anyOf", "properties", "required"),
        *("additionalProperties", "items", "minItems", "maxItems", "minLength", "maxLength"),
        *("pattern", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
        *("title", "description", "default", "examples", "$schema", "$id", "$comment"),
    }
)
"""What `_JSON_SCHEMA` understands; the last seven say nothing about a value."""
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
    return _build(name, _MATCH.format(pattern=pattern, flags=flags, method=method))


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
    return _build(name, _LENGTH.format(unit=pattern, low=low, high=high, margin=margin))


def number_equals(name: str, reference: str, *, tolerance: float = 0.0) -> PythonGrader:
    """Return a grader that is 1 if the last number of the answer is that of a column.

    `reference` is a path such as `item.answer`. Of texts with `####`, as in gsm8k, only what
    follows counts. A row without a number is an error, not a 0.

    Raises:
        InvalidError: the path is none of the row.

    """
    try:
        namespace, path = parse_path(reference)
    except ValueError as error:
        raise InvalidError(str(error), param="reference") from error
    if namespace != "item":
        raise InvalidError("The number must be one of the row: item.…", param="reference")
    body = _NUMBER.format(
        pattern=NUMBER.pattern, path=path, tolerance=str(tolerance), marker=FINAL_ANSWER
    )
    return _build(name, body)


def json_valid(name: str, keys: Collection[str] = ()) -> PythonGrader:
    """Return a grader that is 1 for a JSON object or array; with keys, for an object with them."""
    return _build(name, _JSON.format(keys=list(keys)))


def json_schema(name: str, schema: Mapping[str, Any]) -> PythonGrader:
    """Return a grader that is 1 if the answer is JSON that fits a schema.

    Raises:
        InvalidError: the schema has a keyword that the grader does not understand.

    """
    _check_schema(schema, "schema")
    return _build(name, _JSON_SCHEMA.format(schema=dict(schema)))


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
            raise InvalidError(
                f"{path}: The keyword {str(keyword)[:40]} cannot be checked.",
                hint=f"Use {', '.join(sorted(_SCHEMA_KEYWORDS))}.",
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
