"""The preview of a recipe in the experiment form: recommendation, warnings and estimates."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

from sqlmodel import Session

from studio.errors import InvalidError
from studio.methods import AnyRecipe
from studio.recipe.dotted_keys import flatten
from studio.recipe.precision import AUTO
from studio.services.datasets import data_quality, token_stats
from studio.services.datasets.data_quality import DataNotice
from studio.services.estimates import estimates, fit_suggestions, measurements, reference_runs
from studio.services.estimates.estimates import RunEstimate
from studio.services.estimates.fit_suggestions import RecipeChange
from studio.services.estimates.reference_runs import CountSuggestion
from studio.services.precision import number_formats, recommendation
from studio.services.precision.incompatibilities import Refusal
from studio.services.precision.number_formats import DTypePlan
from studio.services.runs import start_checks
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
    summary: str
    """The recommendation with its reason, or why there is none yet."""
    warnings: tuple[str, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    data_findings: DataNotice | None = None
    """What to check in the data."""
    fix: FormFix | None = None
    plan: DTypePlan | None = None
    estimate: RunEstimate | None = None
    fit_fix: FormFix | None = None
    """The change that would make it fit."""
    largest_batch_fix: FormFix | None = None
    """The change to the largest batch that fits."""
    dry_run_problem: str = ""
    """Why a dry run cannot measure the memory; empty if it can."""
    missing_token_count: CountSuggestion = ""
    """Whether to count its tokens first, to improve the estimate."""
    count_element_id: str = ""
    """Id in the page of what would be counted."""
    parts: Mapping[str, str] = field(default_factory=lambda: formatting.MEMORY_PART_TITLES)


def build_preview(db: Session, recipe: AnyRecipe | None) -> RecipePreview:
    """Preview the recipe of a form; None is that of an invalid form."""
    if recipe is None:
        return RecipePreview(summary="Recommendations appear once every field is valid.")
    try:
        return _build_preview(db, recipe)
    except InvalidError as error:
        return RecipePreview(summary=f"{error.message} {error.hint}".strip())


def _build_preview(db: Session, requested: AnyRecipe) -> RecipePreview:
    facts, recipe = (
        recommendation.load_model_facts(db, requested.base_model),
        recommendation.resolve_precision(db, requested).recipe,
    )
    advice = recommendation.recommend_for_machine(db, requested, facts)
    refusals = start_checks.check(db, recipe, facts)
    return RecipePreview(
        mode=advice.mode.title,
        summary=advice.sentence,
        warnings=(*token_stats.list_warnings(db, recipe), *advice.warnings),
        refusals=tuple(refusals),
        data_findings=data_quality.build_notice(db, recipe),
        fix=_refusal_fix(recipe, refusals[0]) if refusals else _precision_fix(recipe, advice),
        plan=None if refusals else number_formats.plan_dtypes(recipe, facts),
        **({} if refusals else _estimate(db, recipe)),
    )


def _estimate(db: Session, recipe: AnyRecipe) -> dict[str, Any]:
    """Estimate memory and time, and offer changes that make the recipe fit."""
    inputs = estimates.load_inputs(db)
    suggestions, estimate = (
        fit_suggestions.suggest(db, recipe, inputs),
        estimates.estimate_recipe(db, recipe, inputs),
    )
    is_guessed = inputs.lengths(recipe) is None
    return {
        "estimate": estimate,
        **(_token_count_state(db, recipe) if is_guessed else {}),
        "dry_run_problem": measurements.explain_unsupported(recipe),
        "fit_fix": _suggestion_fix(suggestions.smallest),
        "largest_batch_fix": _suggestion_fix(suggestions.largest),
    }


def _token_count_state(db: Session, recipe: AnyRecipe) -> dict[str, str]:
    key = f"{recipe.dataset}:{recipe.base_model}:{recipe.data.chat_template}"
    return {
        "missing_token_count": reference_runs.suggest_count(db, recipe),
        "count_element_id": f"rows-{crc32(key.encode()):x}",
    }


def _suggestion_fix(suggestion: RecipeChange | None) -> FormFix | None:
    return _form_fix(suggestion.title, suggestion.change) if suggestion else None


def _refusal_fix(recipe: AnyRecipe, refusal: Refusal) -> FormFix | None:
    """Offer the change that lets it run; if the model could not be reached, another try."""
    if refusal.link == start_checks.MODELS_PAGE:
        return _form_fix("Try again", {"base_model": recipe.base_model})
    return _form_fix(refusal.hint, refusal.repair)


def _precision_fix(recipe: AnyRecipe, advice: recommendation.Recommendation) -> FormFix | None:
    """Offer the recommended precision if another one is chosen."""
    if advice.mode.name == recipe.precision:
        return None
    return _form_fix(f"Use {advice.mode.title}.", {"precision": AUTO})


def _form_fix(hint: str, change: Mapping[str, Any]) -> FormFix | None:
    if not change:
        return None
    return FormFix(label=hint.rstrip("."), values=json.dumps(flatten(change)))
