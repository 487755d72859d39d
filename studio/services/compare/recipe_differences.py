"""Differences between the recipes of runs, by section, and which values are defaults."""

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
"""Differences that are hidden by default: they only identify a run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingDifference:
    """The values of one setting in all runs."""

    key: str
    """Dotted."""
    values: Sequence[Any]
    """One value per run; None also if a run has no such setting."""
    defaults: Sequence[bool]
    """Whether each run has the default value."""

    @property
    def differs(self) -> bool:
        return len({repr(value) for value in self.values}) > 1

    @property
    def path(self) -> list[str]:
        """The sections it is nested in, outermost first, then its own name."""
        return self.key.split(".")


def diff_recipes(runs: Sequence[Run]) -> list[SettingDifference]:
    """Return every setting that any of the runs has, names first, in recipe order."""
    flat = [{NAME_KEY: run.name} | flatten(run.recipe.model_dump()) for run in runs]
    defaults = [_recipe_defaults(run.recipe.model_dump()) for run in runs]
    keys = dict.fromkeys(key for recipe in flat for key in recipe)
    return [
        SettingDifference(
            key=key,
            values=[recipe.get(key) for recipe in flat],
            defaults=[
                key in recipe and key in default and recipe[key] == default[key]
                for recipe, default in zip(flat, defaults, strict=True)
            ],
        )
        for key in keys
    ]


def group_by_section(
    differences: Sequence[SettingDifference],
) -> dict[str, list[SettingDifference]]:
    """Group settings by recipe section; top-level settings come first."""
    sections: dict[str, list[SettingDifference]] = {"": []}
    for difference in differences:
        section = difference.path[0] if len(difference.path) > 1 else ""
        sections.setdefault(section, []).append(difference)
    return {name: rows for name, rows in sections.items() if rows}


def _recipe_defaults(recipe: Mapping[str, Any]) -> Mapping[str, Any]:
    return _method_defaults(recipe["method"], recipe["adapter"]["kind"])


@lru_cache(maxsize=64)
def _method_defaults(method: str, adapter: str) -> Mapping[str, Any]:
    """Return the defaults of a method's recipe, without its required settings."""
    required = {"base_model": "-", "dataset": "-"}
    try:
        minimal = RECIPE_ADAPTER.validate_python(
            required | {"method": method, "adapter": {"kind": adapter}}
        )
    except ValidationError:  # a method of another version
        return {}
    flat = flatten(minimal.model_dump())
    return {key: value for key, value in flat.items() if key not in {*required, "adapter.kind"}}
