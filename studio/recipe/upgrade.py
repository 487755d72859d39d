"""Upgrade stored recipes: one function for each version that changed the format."""

from collections.abc import Callable
from typing import Any

from studio.recipe.base import VERSION

Upgrade = Callable[[dict[str, Any]], dict[str, Any]]

UPGRADES: dict[int, Upgrade] = {}
"""Upgrade functions by the version they start from; each upgrades by one version."""


def upgrade(values: dict[str, Any]) -> dict[str, Any]:
    """Upgrade a stored recipe to the current version."""
    for version in range(int(values.get("version", VERSION)), VERSION):
        values = UPGRADES[version](values) | {"version": version + 1}
    return values
