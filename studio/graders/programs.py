"""The programs of graders that the studio writes, with places for values."""

import ast
import re
from string import Formatter
from typing import Any

MATCH = """
import re

PATTERN = re.compile({pattern!r}, {flags})


def grade(sample, item):
    return 1.0 if PATTERN.{method}(sample["output_text"]) else 0.0
"""

EQUAL = """
import json

PATH = {path!r}
IGNORE_CASE, IGNORE_SPACES, IGNORE_STOP = {case!r}, {spaces!r}, {stop!r}


def plain(text):
    if IGNORE_CASE:
        text = text.casefold()
    if IGNORE_SPACES:
        text = " ".join(text.split())
    if IGNORE_STOP:
        text = text.removesuffix(".").removesuffix("\\N{{IDEOGRAPHIC FULL STOP}}")
    return text


def grade(sample, item):
    expected = item
    for step in PATH:
        expected = expected[step]
    expected = expected if isinstance(expected, str) else json.dumps(expected, ensure_ascii=False)
    return 1.0 if plain(sample["output_text"]) == plain(expected) else 0.0
"""

LENGTH = """
import re

UNIT = re.compile({unit!r}, re.DOTALL)
LOW, HIGH, MARGIN = {low!r}, {high!r}, {margin!r}


def grade(sample, item):
    length = len(UNIT.findall(sample["output_text"]))
    outside = max(LOW - length, length - HIGH, 0)
    return max(0.0, 1.0 - outside / (MARGIN + 1))
"""

NUMBER = """
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

JSON = """
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

JSON_SCHEMA = """
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

PROGRAMS = {
    "equal": EQUAL,
    "length": LENGTH,
    "match": MATCH,
    "number": NUMBER,
    "json": JSON,
    "schema": JSON_SCHEMA,
}

_LITERAL = r"""'(?:[^'\\\n]|\\.)*'|"(?:[^"\\\n]|\\.)*"|-?[\w.]+|[\[{][^\n]*"""
"""A text, a number or a word; or a list or an object, which a line ends with."""


def read_values(program: str, source: str) -> dict[str, Any] | None:
    """Return the values in a program of `PROGRAMS`; None if it is another program.

    What has been changed by hand may be read all the same: build it again to find out.
    """
    pattern, written = "", set()
    for text, name, _format, conversion in Formatter().parse(PROGRAMS[program].lstrip()):
        pattern += re.escape(text)
        if name:
            pattern += f"(?P<{name}>{_LITERAL if conversion == 'r' else '[a-zA-Z.| ]+'})"
            written |= {name} if conversion == "r" else set()
    match = re.fullmatch(pattern, source)
    if match is None:
        return None
    try:
        return {
            name: ast.literal_eval(value) if name in written else value
            for name, value in match.groupdict().items()
        }
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None
