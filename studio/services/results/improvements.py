"""What to try after a run, each with a reason from the run's own numbers."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Literal

from sqlmodel import Session

from studio.db.tables import DatasetVersion, Run
from studio.methods import METHODS, AnyRecipe
from studio.services.results.run_verdict import RunVerdict
from studio.services.runs import fixes, runs

MAX_IMPROVEMENTS = 4
VALIDATION_ROWS = 30
"""As many validation rows tell whether a third of them changed, with room to spare."""
MAX_VALIDATION_SHARE = 0.3

FEW_ROWS = 1000
"""Below this number of training rows, more data is the first thing to try."""

Kind = Literal["recipe", "data", "sweep"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Improvement:
    kind: Kind
    """Whether to change settings, to add data, or to search over settings."""
    title: str
    reason: str
    change: dict[str, Any] = field(default_factory=dict)
    """Values that override the recipe's."""


def list_improvements(db: Session, run: Run, verdict: RunVerdict) -> list[Improvement]:
    """Return what to try next, the most promising first."""
    version = db.get(DatasetVersion, run.dataset_version_id or 0)
    rows = run.resolved.get("train_rows")
    alarms = runs.list_alarms(db, run.id or 0)
    widenings = (
        fix.change["precision"]
        for alarm in alarms
        for fix in fixes.list_fixes(db, alarm.data["code"], run.recipe)
        if "precision" in fix.change
    )
    wider = next(widenings, "")
    return suggest(
        run.recipe,
        verdict,
        rows=rows,
        alarms=len(alarms),
        wider=wider,
        holds_out=version is not None and not version.validation_rows,
    )


def suggest(
    recipe: AnyRecipe,
    verdict: RunVerdict,
    *,
    rows: int | None,
    alarms: int,
    wider: str,
    holds_out: bool = True,
) -> list[Improvement]:
    """Return what to try next.

    `wider` is a precision that avoids the alarms, if there is one; `holds_out` says whether runs
    hold out their validation rows, because the dataset has none of its own.
    """
    found = (
        *_by_precision(alarms, wider),
        *_by_answers(recipe, verdict),
        *_by_validation(recipe, verdict, rows or 0, holds_out=holds_out),
        *_by_curve(recipe, verdict),
        *_by_data(verdict, rows),
        Improvement(
            kind="sweep",
            title="Search for better settings",
            reason="A sweep trains several short runs and compares learning rates and batch sizes.",
        ),
    )
    return list(islice(found, MAX_IMPROVEMENTS))


def _by_precision(alarms: int, wider: str) -> Iterator[Improvement]:
    if alarms and wider:
        yield Improvement(
            kind="recipe",
            title="Use another precision",
            reason=f"This run raised {alarms} numerical alarms.",
            change={"precision": wider},
        )


def _by_answers(recipe: AnyRecipe, verdict: RunVerdict) -> Iterator[Improvement]:
    if not verdict.spoilt:
        return
    reason = "Some answers became empty or repeat themselves."
    keeps = METHODS[recipe.method].keeps_answers
    if keeps and not _has_any(recipe, keeps):
        yield Improvement(
            kind="recipe", title="Keep the better answers likely", reason=reason, change=dict(keeps)
        )
    elif not verdict.trend.is_worse:
        yield _lower_rate(recipe, reason)


def _has_any(recipe: AnyRecipe, values: Mapping[str, Mapping[str, Any]]) -> bool:
    """Return whether a recipe has turned on any of these settings."""
    return any(
        getattr(getattr(recipe, section), name)
        for section, names in values.items()
        for name in names
    )


def _lower_rate(recipe: AnyRecipe, reason: str) -> Improvement:
    rate = float(f"{recipe.optimisation.learning_rate / fixes.LEARNING_RATE_DIVISOR:.3g}")
    return Improvement(
        kind="recipe",
        title="Lower the learning rate",
        reason=reason,
        change={"optimisation": {"learning_rate": rate}},
    )


def _by_validation(
    recipe: AnyRecipe, verdict: RunVerdict, rows: int, *, holds_out: bool
) -> Iterator[Improvement]:
    trend = verdict.trend
    if trend.shape != "chance":
        return
    reason = f"Few validation rows ({trend.rows}) can show an improvement by chance."
    share = min(VALIDATION_ROWS / (trend.rows + rows), MAX_VALIDATION_SHARE)
    if holds_out and share > recipe.data.validation_share:
        yield Improvement(
            kind="recipe",
            title="Validate on more rows",
            reason=reason,
            change={"data": {"validation_share": float(f"{share:.2g}")}},
        )
    else:
        yield Improvement(kind="data", title="Add validation rows", reason=reason)


def _by_curve(recipe: AnyRecipe, verdict: RunVerdict) -> Iterator[Improvement]:
    trend = verdict.trend
    if trend.shape == "falling":
        yield Improvement(
            kind="recipe",
            title="Train longer",
            reason=f"Validation was still improving at step {trend.last_step}.",
            change=_scaled_length(recipe, 2),
        )
    if trend.shape == "overfitting" and trend.best_step:
        yield Improvement(
            kind="recipe",
            title="Train shorter",
            reason=f"Validation was best at step {trend.best_step} of {trend.last_step}.",
            change=_scaled_length(recipe, trend.best_step / max(1, trend.last_step)),
        )
    if trend.is_worse:
        yield _lower_rate(
            recipe,
            f"Validation got worse: {recipe.optimisation.learning_rate:g} is probably too high.",
        )
    if trend.shape == "unchanged":
        rate = float(f"{min(1.0, recipe.optimisation.learning_rate * 3):.3g}")
        yield Improvement(
            kind="recipe",
            title="Raise the learning rate",
            reason=f"Validation hardly moved with {recipe.optimisation.learning_rate:g}.",
            change={"optimisation": {"learning_rate": rate}},
        )


def _by_data(verdict: RunVerdict, rows: int | None) -> Iterator[Improvement]:
    if rows is None:
        return
    if verdict.trend.shape == "overfitting" and not verdict.trend.is_worse:
        reason = f"It memorised its {rows} training rows; more rows delay that."
    elif rows < FEW_ROWS and _is_imperfect(verdict):
        reason = "It trained on 1 row only." if rows == 1 else f"It trained on {rows} rows only."
    else:
        return
    yield Improvement(kind="data", title="Add more data", reason=reason)


def _is_imperfect(verdict: RunVerdict) -> bool:
    return not verdict.after.judged or verdict.after.right < verdict.after.judged


def _scaled_length(recipe: AnyRecipe, factor: float) -> dict[str, Any]:
    """Return the setting that determines how long a run trains, scaled."""
    settings = recipe.optimisation
    if settings.max_steps is not None:
        return {"optimisation": {"max_steps": max(1, round(settings.max_steps * factor))}}
    epochs = float(f"{settings.num_train_epochs * factor:.2g}")
    return {"optimisation": {"num_train_epochs": max(0.1, epochs)}}
