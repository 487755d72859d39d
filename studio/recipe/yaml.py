"""Recipes as YAML: read strictly, written with each knob's help above it."""

from collections.abc import Iterator
from typing import Any

import yaml
from pydantic import BaseModel

from studio.errors import InvalidError
from studio.recipe.fields import Section
from studio.schemas.field_docs import field_descriptions


def dump(recipe: Section) -> str:
    """Write a recipe so that a person can read it and a run can repeat it."""
    return "\n".join(_lines(recipe, indent=0)) + "\n"


def load(text: str) -> dict[str, Any]:
    """Read a recipe's text as plain values.

    Raises:
        InvalidError: the text is no YAML, or no mapping; the message names line and column.

    """
    try:
        values = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as error:
        place = getattr(error, "problem_mark", None)
        where = f" at line {place.line + 1}, column {place.column + 1}" if place else ""
        raise InvalidError(
            f"This is not YAML{where}.", hint="Indent with spaces, and write `name: value`."
        ) from error
    if not isinstance(values, dict):
        raise InvalidError("A recipe is a list of `name: value` lines; this text is not.")
    return {str(name): value for name, value in values.items()}


def _lines(section: BaseModel, indent: int) -> Iterator[str]:
    margin = "  " * indent
    said = field_descriptions(type(section))
    for name in type(section).model_fields:
        value = getattr(section, name)
        yield from (f"{margin}# {line}" for line in said.get(name, "").splitlines())
        if isinstance(value, BaseModel):
            yield f"{margin}{name}:"
            yield from _lines(value, indent + 1)
        else:
            # The writer would break a line at U+0085 and not find it again.
            plain = str(value).isprintable()
            text = yaml.safe_dump({name: value}, allow_unicode=plain, width=10_000)
            yield from (margin + line for line in text.rstrip("\n").split("\n"))
