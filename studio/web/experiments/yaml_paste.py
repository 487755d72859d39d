"""Parse a pasted recipe into form values, with a problem for each part that does not fit."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from pydantic import BaseModel

from studio.errors import InvalidError
from studio.methods import METHODS
from studio.methods.base import Method
from studio.recipe import yaml
from studio.recipe.fields import Section, section_types
from studio.recipe.upgrade import upgrade
from studio.web.forms.recipe_form import format_value

MAX_CHARS = 100_000
"""Most characters of a pasted text. A recipe with all its comments has under ten thousand."""


@dataclass(slots=True)
class PastedRecipe:
    method: Method
    values: dict[str, Any]
    """As a form posts them."""
    problems: list[str] = field(default_factory=list)
    """What could not be used, a sentence each."""


def parse_recipe(text: str, method: Method) -> PastedRecipe:
    """Parse the text of a recipe as far as it fits.

    This walks the recipe's fields, never the text: each setting is visited once, however deeply
    and often YAML aliases refer to each other.

    Raises:
        InvalidError: the text is not YAML, or too long; nothing of it can be used.

    """
    if len(text) > MAX_CHARS:
        raise InvalidError(
            f"A recipe has at most {MAX_CHARS:,} characters.", hint="Paste a single recipe."
        )
    given = yaml.load(text)
    named = given.pop("method", method.name)
    poured = PastedRecipe(method=METHODS.get(str(named), method), values={})
    if str(named) not in METHODS:
        poured.problems.append(f"There is no method named {str(named)[:50]!r}.")
    try:
        given = upgrade(given)
    except (ValueError, TypeError, KeyError):
        poured.problems.append("This version of the recipe format is not supported.")
    given.pop("version", None)
    poured.values = _parse_section(poured.method.recipe, given, "", poured.problems)
    return poured


def _parse_section(
    section: type[BaseModel], given: Mapping[Any, Any], prefix: str, problems: list[str]
) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in given.items():
        name, dotted = str(key)[:100], f"{prefix}{str(key)[:100]}"
        info = section.model_fields.get(name)
        inside = section_types(info.annotation) if info else []
        if info is None:
            problems.append(f"There is no setting named {dotted}.{_suggest_name(section, name)}")
        elif inside and isinstance(value, Mapping):
            values[name] = _parse_section(
                _chosen_variant(inside, value), value, f"{dotted}.", problems
            )
        elif inside or isinstance(value, Mapping | list | tuple | set):
            wanted = "a group of settings" if inside else "a single value"
            problems.append(f"{dotted} expects {wanted}.")
        else:
            values[name] = format_value(value)
    return values


def _chosen_variant(sections: list[type[Section]], given: Mapping[Any, Any]) -> type[Section]:
    """Return the variant that `kind` names, or the first."""
    kinds = {one.model_fields["kind"].default: one for one in sections if len(sections) > 1}
    kind = given.get("kind")
    return kinds.get(kind if isinstance(kind, str) else "", sections[0])


def _suggest_name(section: type[BaseModel], name: str) -> str:
    """Suggest the setting that was probably meant: a similar name, or the same one elsewhere."""
    here = get_close_matches(name, list(section.model_fields), n=1, cutoff=0.6)
    everywhere = [dotted for one in METHODS.values() for dotted in _field_names(one.recipe, "")]
    there = [dotted for dotted in everywhere if dotted.rpartition(".")[2] == name]
    return f" Did you mean {(there or here)[0]}?" if here or there else ""


def _field_names(section: type[BaseModel], prefix: str) -> Iterator[str]:
    for name, info in section.model_fields.items():
        inside = section_types(info.annotation)
        for one in inside:
            yield from _field_names(one, f"{prefix}{name}.")
        if not inside:
            yield prefix + name
