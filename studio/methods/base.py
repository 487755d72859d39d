"""What the studio needs to know of a training method before any GPU is touched."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from studio.recipe.base import Recipe
from studio.weights.model_kinds import ModelKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """A good starting point: values laid over the recipe's defaults."""

    name: str
    title: str
    summary: str
    values: Mapping[str, Any] = field(default_factory=dict)
    is_study: bool = False
    """Whether it is to be tried in several precisions, which are chosen next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    name: str
    title: str
    summary: str
    recipe: type[Recipe]
    presets: tuple[Preset, ...]
    """The first is what a new form opens with."""
    trainable_kinds: frozenset[ModelKind] = frozenset({"causal"})
    """The kinds of model that it can train; others are refused when they are chosen."""
