"""Parse a pasted recipe into form values, with a problem for each part that does not fit."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from pydantic import BaseModel

from studio.errors import InvalidError
from studio.methods import METHODS
from studio.methods.base import Method
from studio.recipe import yaml
from studio.recipe.base import upgrade
from studio.recipe.fields import Section, field_spec, section_types
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
    fields = yaml.load(text)
    method_name = fields.pop("method", method.name)
    pasted = PastedRecipe(method=METHODS.get(str(method_name), method), values={})
    if str(method_name) not in METHODS:
        pasted.problems.append(f"There is no method named {str(method_name)[:50]!r}.")
    try:
        fields = upgrade(fields)
    except (ValueError, TypeError, KeyError):
        pasted.problems.append("This version of the recipe format is not supported.")
    fields.pop("version", None)
    pasted.values = _parse_section(pasted.method.recipe, fields, "", pasted.problems)
    return pasted


def _parse_section(
    section: type[BaseModel], fields: Mapping[Any, Any], prefix: str, problems: list[str]
) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in fields.items():
        name, dotted = str(key)[:100], f"{prefix}{str(key)[:100]}"
        info = section.model_fields.get(name)
        subsections = section_types(info.annotation) if info else []
        if info is None:
            problems.append(f"There is no setting named {dotted}." + _suggest_name(section, name))
        elif subsections and isinstance(value, Mapping):
            values[name] = _parse_section(
                _chosen_variant(subsections, value), value, f"{dotted}.", problems
            )
        elif isinstance(value, Mapping) and (spec := field_spec(info)) and spec.is_json:
            values[name] = _to_json(value)
        elif subsections or isinstance(value, Mapping | list | tuple | set):
            expected = "a group of settings" if subsections else "a single value"
            problems.append(f"{dotted} expects {expected}.")
        else:
            values[name] = format_value(value)
    return values


def _to_json(value: Mapping[Any, Any]) -> str:
    """Return JSON, cut off if YAML aliases make it much longer than any text is."""
    text = ""
    try:
        for chunk in json.JSONEncoder(ensure_ascii=False, default=str).iterencode(value):
            text += chunk
            if len(text) > MAX_CHARS:
                break
    except (ValueError, TypeError, RecursionError):  # It holds itself, or keys that are no text.
        return str(type(value).__name__)
    return text


def _chosen_variant(sections: list[type[Section]], fields: Mapping[Any, Any]) -> type[Section]:
    """Return the variant that `kind` names, or the first."""
    kinds = {
        variant.model_fields["kind"].default: variant for variant in sections if len(sections) > 1
    }
    kind = fields.get("kind")
    return kinds.get(kind if isinstance(kind, str) else "", sections[0])


def _suggest_name(section: type[BaseModel], name: str) -> str:
    """Suggest the setting that was probably meant: a similar name, or the same one elsewhere."""
    similar = get_close_matches(name, list(section.model_fields), n=1, cutoff=0.6)
    all_names = [
        dotted for method in METHODS.values() for dotted in _field_names(method.recipe, "")
    ]
    elsewhere = [dotted for dotted in all_names if dotted.rpartition(".")[2] == name]
    return f" Did you mean {(elsewhere or similar)[0]}?" if similar or elsewhere else ""


def _field_names(section: type[BaseModel], prefix: str) -> Iterator[str]:
    for name, info in section.model_fields.items():
        subsections = section_types(info.annotation)
        for subsection in subsections:
            yield from _field_names(subsection, f"{prefix}{name}.")
        if not subsections:
            yield prefix + name
