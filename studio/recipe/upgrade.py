"""Yesterday's recipes made today's: one function for each version that broke stored recipes."""

from collections.abc import Callable
from typing import Any

from studio.recipe.base import VERSION

Upgrade = Callable[[dict[str, Any]], dict[str, Any]]

UPGRADES: dict[int, Upgrade] = {}
"""From a version to the function that makes its recipes one version newer."""


def upgrade(values: dict[str, Any]) -> dict[str, Any]:
    """Bring a stored recipe to the present version."""
    for version in range(int(values.get("version", VERSION)), VERSION):
        values = UPGRADES[version](values) | {"version": version + 1}
    return values
