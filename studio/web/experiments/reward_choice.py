"""What a draft rewards answers for: a default that suits the dataset, and what it is in words."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlmodel import Session

from studio.errors import InvalidError
from studio.graders.item_columns import list_item_columns
from studio.graders.items import GradedRow
from studio.graders.schema import Grader
from studio.methods.base import Method
from studio.methods.rollouts import DEFAULT_GRADER, RolloutRecipe
from studio.recipe.dotted_keys import merge
from studio.services.graders import builder, columns, trials
from studio.services.graders.builder import GraderForm, Part
from studio.services.graders.purposes import OTHER
from studio.settings import Settings
from studio.web.forms.recipe_form import nested_values

GRADER = "reward.grader"
"""The setting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardedPart:
    """One thing that answers are rewarded for."""

    title: str
    compared_with: str
    """The place it is compared with, such as `item.answer`, or a text; empty if with nothing."""
    weight: str
    """Empty if it is the only one, or if a formula combines them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardChoice:
    parts: Sequence[RewardedPart] = ()
    """Empty if the grader cannot be read."""
    formula: str = ""
    """Of a grader that combines others by a formula of its own."""
    better: str = ""
    """The title of a grader that can read the rows, if this one cannot."""
    better_values: str = ""
    """The fields that choose it, as JSON."""


def learns_from_scores(method: Method) -> bool:
    return issubclass(method.recipe, RolloutRecipe)


def fit_reward(
    db: Session, settings: Settings, method: Method, values: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the values of a new draft with a grader that suits its dataset.

    The default one stays, unless it reads a column that the rows lack, or all answers are numbers.
    """
    if not learns_from_scores(method):
        return dict(values)
    rows = _load_rows(db, settings, str(values.get("dataset", "")))
    better = builder.suggest(rows) if rows else None
    if better is None or not (_is_number(better) or _is_unreadable(_read_grader(values), rows)):
        return dict(values)
    try:
        text = json.dumps(builder.to_json(builder.build(better)), ensure_ascii=False)
    except InvalidError:  # The name of the column cannot be written as a place.
        return dict(values)
    return merge(values, {"reward": {"grader": text}})


def describe(
    db: Session, settings: Settings, method: Method, values: Mapping[str, Any]
) -> RewardChoice | None:
    """Return what a draft rewards; None if its method does not learn from scores."""
    if not learns_from_scores(method):
        return None
    grader = _read_grader(values)
    if grader is None:
        return RewardChoice()
    form = builder.read(grader)
    has_weights = len(form.parts) > 1 and not form.formula
    choice = RewardChoice(
        parts=[_describe_part(part, has_weights=has_weights) for part in form.parts],
        formula=form.formula,
    )
    rows = _load_rows(db, settings, str(values.get("dataset", "")))
    return _with_better(choice, rows) if _is_unreadable(grader, rows) else choice


def _with_better(choice: RewardChoice, rows: Sequence[GradedRow]) -> RewardChoice:
    form = builder.suggest(rows)
    try:
        text = builder.write_json(builder.build(form))
    except InvalidError:
        return choice
    return RewardChoice(
        parts=choice.parts,
        formula=choice.formula,
        better=form.parts[0].definition.title,
        better_values=json.dumps({GRADER: text}),
    )


def _describe_part(part: Part, *, has_weights: bool) -> RewardedPart:
    reference = part.values.get("reference", "")
    column = columns.read_template(reference)
    return RewardedPart(
        title="A grader of your own" if part.purpose == OTHER else part.definition.title,
        compared_with=f"item.{column}" if column else reference,
        weight=part.weight if has_weights else "",
    )


def _load_rows(db: Session, settings: Settings, name: str) -> list[GradedRow]:
    try:
        return trials.first_rows(db, settings, name) if name else []
    except InvalidError:  # The dataset's own field shows this error.
        return []


def _read_grader(values: Mapping[str, Any]) -> Grader | None:
    text = nested_values(values, "reward").get("grader", DEFAULT_GRADER)
    try:
        return builder.read_json(str(text))
    except InvalidError:  # The setting's own field shows this error.
        return None


def _is_number(form: GraderForm) -> bool:
    return form.parts[0].purpose == "number"


def _is_unreadable(grader: Grader | None, rows: Sequence[GradedRow]) -> bool:
    known = {*columns.list_columns(rows), "messages"}
    return bool(rows and grader and set(list_item_columns(grader)) - known)
