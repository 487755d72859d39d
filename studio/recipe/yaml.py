"""Recipes as YAML: parsed strictly, written with each setting's help as a comment."""

from collections.abc import Iterator
from typing import Any

import yaml
from pydantic import BaseModel

from studio.errors import InvalidError
from studio.recipe.fields import Section
from studio.schemas.field_docs import field_descriptions


def dump(recipe: Section, *, has_comments: bool = True) -> str:
    """Write a recipe as YAML that reproduces the run, with each setting's help as a comment."""
    return "\n".join(_lines(recipe, indent=0, has_comments=has_comments)) + "\n"


def load(text: str) -> dict[str, Any]:
    """Parse the text of a recipe into plain values.

    Raises:
        InvalidError: the text is not YAML, or not a mapping; the message gives line and column.

    """
    try:
        values = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        location = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise InvalidError(
            f"Invalid YAML{location}.", hint="Indent with spaces, and write `name: value`."
        ) from error
    if not isinstance(values, dict):
        raise InvalidError("A recipe must consist of `name: value` lines.")
    return {str(name): value for name, value in values.items()}


def _lines(section: BaseModel, indent: int, *, has_comments: bool) -> Iterator[str]:
    margin = "  " * indent
    descriptions = field_descriptions(type(section)) if has_comments else {}
    for name in type(section).model_fields:
        value = getattr(section, name)
        yield from (f"{margin}# {line}" for line in descriptions.get(name, "").splitlines())
        if isinstance(value, BaseModel):
            yield f"{margin}{name}:"
            yield from _lines(value, indent + 1, has_comments=has_comments)
        else:
            # PyYAML would break a line at U+0085 and not parse it back.
            plain = str(value).isprintable()
            text = yaml.safe_dump({name: value}, allow_unicode=plain, width=10_000)
            yield from (margin + line for line in text.rstrip("\n").split("\n"))
