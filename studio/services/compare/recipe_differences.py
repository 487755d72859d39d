"""In which settings runs differ, section by section, and which of them are as they come."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from pydantic import ValidationError

from studio.db.tables import Run
from studio.methods import RECIPE_ADAPTER
from studio.recipe.dotted_keys import flatten
from studio.services.compare.seed_noise import SEEDS

NAME_KEY = "name"
IGNORED_KEYS = SEEDS | {NAME_KEY}
"""What tells runs apart and is no reason for a difference: left out unless it is asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingDifference:
    """One setting in all runs."""

    key: str
    """Dotted."""
    values: Sequence[Any]
    """One a run; None also where a run has no such setting."""
    defaults: Sequence[bool]
    """Whether a run has it as it comes."""

    @property
    def differs(self) -> bool:
        return len({repr(value) for value in self.values}) > 1

    @property
    def path(self) -> list[str]:
        """The sections it is nested in, outermost first, and its own name."""
        return self.key.split(".")


def diff_recipes(chosen: Sequence[Run]) -> list[SettingDifference]:
    """Return every setting that any of the runs has, names first, in the order of the recipe."""
    flat = [{NAME_KEY: run.name} | flatten(run.recipe.model_dump()) for run in chosen]
    usual = [_recipe_defaults(run.recipe.model_dump()) for run in chosen]
    keys = dict.fromkeys(key for one in flat for key in one)
    return [
        SettingDifference(
            key=key,
            values=[one.get(key) for one in flat],
            defaults=[
                key in one and key in default and one[key] == default[key]
                for one, default in zip(flat, usual, strict=True)
            ],
        )
        for key in keys
    ]


def group_by_section(found: Sequence[SettingDifference]) -> dict[str, list[SettingDifference]]:
    """Group settings by the section of the recipe they stand in; the recipe's own come first."""
    sections: dict[str, list[SettingDifference]] = {"": []}
    for one in found:
        section = one.path[0] if len(one.path) > 1 else ""
        sections.setdefault(section, []).append(one)
    return {name: rows for name, rows in sections.items() if rows}


def _recipe_defaults(recipe: Mapping[str, Any]) -> Mapping[str, Any]:
    return _method_defaults(recipe["method"], recipe["adapter"]["kind"])


@lru_cache(maxsize=64)
def _method_defaults(method: str, adapter: str) -> Mapping[str, Any]:
    """Return a recipe of which nothing was said but what must be; that is left out."""
    needed = {"base_model": "-", "dataset": "-"}
    try:
        least = RECIPE_ADAPTER.validate_python(
            needed | {"method": method, "adapter": {"kind": adapter}}
        )
    except ValidationError:  # a method that is not of this version
        return {}
    flat = flatten(least.model_dump())
    return {key: value for key, value in flat.items() if key not in {*needed, "adapter.kind"}}
