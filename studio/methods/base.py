"""What the studio knows about a training method without loading torch."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from studio.metrics import MethodMetrics
from studio.recipe.base import Recipe
from studio.weights.model_kinds import ModelKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """A starting point: values merged over the recipe's defaults."""

    name: str
    title: str
    summary: str
    values: Mapping[str, Any] = field(default_factory=dict)
    is_study: bool = False
    """Whether the recipe runs in several precisions, which the user selects next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    name: str
    title: str
    summary: str
    recipe: type[Recipe]
    presets: tuple[Preset, ...]
    """A new form opens with the first one."""
    metrics: MethodMetrics
    trainable_kinds: frozenset[ModelKind] = frozenset({"causal"})
    """The model kinds this method can train; others are refused when they are selected."""
