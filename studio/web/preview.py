"""What the form of a new experiment says of a recipe before it starts."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError
from sqlmodel import Session

from studio.errors import InvalidError
from studio.hardware import detect
from studio.methods import RECIPES, AnyRecipe
from studio.methods.base import Method
from studio.recipe.dotted import flatten
from studio.services import advice, memory, plans, refusals
from studio.services.memory import Estimate
from studio.services.plans import Plan
from studio.web import words
from studio.web.forms import tidy
from studio.weights.facts import ModelFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """A change of the form that one click makes."""

    label: str
    values: str
    """Fields by their dotted names, as JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    sentence: str
    """What we would choose, and why; or why nothing can be said yet."""
    warnings: tuple[str, ...] = ()
    refusals: tuple[str, ...] = ()
    repair: Repair | None = None
    plan: Plan | None = None
    memory: Estimate | None = None
    parts: Mapping[str, str] = field(default_factory=lambda: words.PARTS)


def of(db: Session, method: Method, values: Mapping[str, Any]) -> Preview:
    """Look at a form as far as it is filled in."""
    try:
        recipe = RECIPES.validate_python(tidy(method.recipe, values), strict=False)
        return _of(db, recipe)
    except ValidationError:
        return Preview(sentence="Advice follows once every field holds what it may.")
    except InvalidError as error:
        return Preview(sentence=f"{error.message} {error.hint}".strip())


def _of(db: Session, recipe: AnyRecipe) -> Preview:
    facts = advice.facts_of(db, recipe.base_model)
    advised = advice.advise(recipe, facts, detect())
    refused = refusals.refusals(recipe, facts, detect())
    return Preview(
        sentence=advised.sentence,
        warnings=advised.warnings,
        refusals=tuple(one.message for one in refused),
        repair=_repair(refused[0].hint, refused[0].repair) if refused else _switch(recipe, advised),
        plan=None if refused else plans.plan(recipe, facts),
        memory=None if refused else _memory(recipe, facts),
    )


def _memory(recipe: AnyRecipe, facts: ModelFacts) -> Estimate | None:
    on_gpu = detect().device == "cuda"
    return memory.estimate(recipe, facts, memory.load_of(recipe), on_gpu=on_gpu)


def _switch(recipe: AnyRecipe, advised: advice.Advice) -> Repair | None:
    """Offer the recommended precision to those who chose another."""
    if advised.mode.name == recipe.precision:
        return None
    return _repair(f"Use {advised.mode.title}.", {"precision": advised.mode.name})


def _repair(hint: str, change: Mapping[str, Any]) -> Repair | None:
    if not change:
        return None
    return Repair(label=hint.rstrip("."), values=json.dumps(flatten(change)))
