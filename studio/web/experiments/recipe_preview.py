"""The preview of a recipe in the experiment form: recommendation, warnings and estimates."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

from pydantic import ValidationError
from sqlmodel import Session

from studio.errors import InvalidError
from studio.methods import RECIPE_ADAPTER, AnyRecipe
from studio.methods.base import Method
from studio.recipe.dotted_keys import flatten
from studio.recipe.precision import AUTO
from studio.services.datasets import data_quality, token_stats
from studio.services.datasets.data_quality import DataNotice
from studio.services.estimates import dry_runs, estimates, fit_suggestions, token_lengths
from studio.services.estimates.estimates import RunEstimate
from studio.services.estimates.fit_suggestions import RecipeChange
from studio.services.estimates.token_lengths import CountSuggestion
from studio.services.precision import number_formats, recommendation
from studio.services.precision.incompatibilities import Refusal
from studio.services.precision.number_formats import DTypePlan
from studio.services.runs import base_model_check, start_checks
from studio.web.forms.recipe_form import parse_posted
from studio.web.i18n import formatting


@dataclass(frozen=True, slots=True, kw_only=True)
class FormFix:
    """A one-click change of the form."""

    label: str
    values: str
    """Fields by their dotted names, as JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipePreview:
    mode: str = ""
    """The recommended precision; empty while the form is invalid."""
    sentence: str
    """The recommendation with its reason, or why there is none yet."""
    warnings: tuple[str, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    noted: DataNotice | None = None
    """What to check in the data."""
    repair: FormFix | None = None
    plan: DTypePlan | None = None
    needed: RunEstimate | None = None
    smallest: FormFix | None = None
    """The change that would make it fit."""
    largest: FormFix | None = None
    """The change to the largest batch that fits."""
    unfollowed: str = ""
    """Why a dry run cannot measure the memory; empty if it can."""
    uncounted: CountSuggestion = ""
    """Whether to count its tokens first, to improve the estimate."""
    rows: str = ""
    """Id in the page of what would be counted."""
    parts: Mapping[str, str] = field(default_factory=lambda: formatting.MEMORY_PART_TITLES)


def build_preview(db: Session, method: Method, values: Mapping[str, Any]) -> RecipePreview:
    """Preview a form as far as it is filled in."""
    try:
        recipe = RECIPE_ADAPTER.validate_python(parse_posted(method.recipe, values), strict=False)
        return _build_preview(db, recipe)
    except ValidationError:
        return RecipePreview(sentence="Recommendations appear once every field is valid.")
    except InvalidError as error:
        return RecipePreview(sentence=f"{error.message} {error.hint}".strip())


def _build_preview(db: Session, asked: AnyRecipe) -> RecipePreview:
    facts, recipe = (
        recommendation.load_model_facts(db, asked.base_model),
        recommendation.resolve_precision(db, asked).recipe,
    )
    advised = recommendation.recommend_for_machine(db, asked, facts)
    refused = start_checks.check(db, recipe, facts)
    return RecipePreview(
        mode=advised.mode.title,
        sentence=advised.sentence,
        warnings=(*token_stats.list_warnings(db, recipe), *advised.warnings),
        refusals=tuple(refused),
        noted=data_quality.build_notice(db, recipe),
        repair=_refusal_fix(recipe, refused[0]) if refused else _precision_fix(recipe, advised),
        plan=None if refused else number_formats.plan_dtypes(recipe, facts),
        **({} if refused else _estimate(db, recipe)),
    )


def _estimate(db: Session, recipe: AnyRecipe) -> dict[str, Any]:
    """Estimate memory and time, and offer changes that make the recipe fit."""
    known = estimates.load_inputs(db)
    found, needed = (
        fit_suggestions.suggest(db, recipe, known),
        estimates.estimate_recipe(db, recipe, known),
    )
    is_guessed = known.lengths(recipe) is None
    return {
        "needed": needed,
        **(_token_count_state(db, recipe) if is_guessed else {}),
        "unfollowed": dry_runs.explain_unsupported(recipe),
        "smallest": _suggestion_fix(found.smallest),
        "largest": _suggestion_fix(found.largest),
    }


def _token_count_state(db: Session, recipe: AnyRecipe) -> dict[str, str]:
    named = f"{recipe.dataset}:{recipe.base_model}:{recipe.data.chat_template}"
    return {
        "uncounted": token_lengths.suggest_count(db, recipe),
        "rows": f"rows-{crc32(named.encode()):x}",
    }


def _suggestion_fix(way: RecipeChange | None) -> FormFix | None:
    return _form_fix(way.title, way.change) if way else None


def _refusal_fix(recipe: AnyRecipe, refused: Refusal) -> FormFix | None:
    """Offer the change that lets it run; if the model could not be reached, another try."""
    if refused.link == base_model_check.MODELS_PAGE:
        return _form_fix("Try again", {"base_model": recipe.base_model})
    return _form_fix(refused.hint, refused.repair)


def _precision_fix(recipe: AnyRecipe, advised: recommendation.Recommendation) -> FormFix | None:
    """Offer the recommended precision if another one is chosen."""
    if advised.mode.name == recipe.precision:
        return None
    return _form_fix(f"Use {advised.mode.title}.", {"precision": AUTO})


def _form_fix(hint: str, change: Mapping[str, Any]) -> FormFix | None:
    if not change:
        return None
    return FormFix(label=hint.rstrip("."), values=json.dumps(flatten(change)))
