"""Drafts of the experiment form: start from a preset or a source, parse, apply form actions."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError
from sqlmodel import Session

from studio.errors import InvalidError, NotFoundError
from studio.methods import METHODS, RECIPE_ADAPTER, AnyRecipe
from studio.methods.base import Method, Preset
from studio.recipe.dotted_keys import merge, nest
from studio.recipe.precision import AUTO
from studio.services import experiments
from studio.services.datasets import datasets
from studio.services.runs import recipe_parents
from studio.web.experiments.yaml_paste import parse_recipe
from studio.web.forms.recipe_form import field_problems, fieldset, is_same_value, parse_posted

DEFAULT_METHOD = next(iter(METHODS))
VIEWS = ("simple", "all", "yaml", "curl", "python", "openai")
_OWN_FIELDS = ("name", "notes", "preset", "view", "paste")
_NON_RECIPE_FIELDS = {*_OWN_FIELDS, "from", "look", "do"}
"""What a form posts besides its recipe, such as the row that the token preview shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentDraft:
    """An experiment as far as the form is filled in."""

    method: Method
    preset: str = ""
    """The preset it started from, if any."""
    source: str = ""
    """What it started from, as `run:12` or `dataset:3`, or empty."""
    name: str = ""
    notes: str = ""
    view: str = VIEWS[0]
    paste: str = ""
    """The text of a recipe to paste into the form."""
    values: Mapping[str, Any]
    """The recipe's values, as typed or as another recipe has them."""
    initial_values: Mapping[str, Any]
    """The values it started with."""

    @property
    def recipe(self) -> AnyRecipe:
        """The recipe.

        Raises:
            ValidationError: a value is missing or invalid.

        """
        return RECIPE_ADAPTER.validate_python(
            parse_posted(self.method.recipe, self.values), strict=False
        )

    @property
    def parent(self) -> str:
        """The parent of its recipe, as `run:12`, or empty."""
        return self.source if self.source.startswith(("run:", "experiment:")) else ""

    @property
    def is_study(self) -> bool:
        return any(preset.is_study for preset in self.method.presets if preset.name == self.preset)


def draft_from_preset(db: Session, method: Method, preset: str) -> ExperimentDraft:
    """Start from a preset, with the precision that is recommended on this machine."""
    start = _find_preset(method, preset) or method.presets[0]
    last = next(iter(experiments.newest(db, limit=1)), None)
    number = (last.id or 0) + 1 if last else 1
    values = {"precision": AUTO, **start.values}
    name = f"{start.name}-{number}"
    return ExperimentDraft(
        method=method, preset=start.name, name=name, values=values, initial_values=values
    )


def draft_from_source(db: Session, source: str) -> ExperimentDraft:
    """Start from the recipe of a run or an experiment, or from a dataset: `run:12`.

    Raises:
        NotFoundError: the source does not exist.

    """
    kind, _colon, number = source.partition(":")
    if kind == "dataset" and number.isdecimal():
        draft = draft_from_preset(db, get_method(DEFAULT_METHOD), "")
        values = {**draft.values, "dataset": datasets.get(db, int(number)).name}
        return replace(draft, source=source, values=values, initial_values=values)
    parent = recipe_parents.find(db, source)
    values = parent.recipe.model_dump()
    method = METHODS[parent.recipe.method]
    return ExperimentDraft(
        method=method,
        source=source,
        name=_copy_name(parent.name),
        values=values,
        initial_values=values,
    )


def apply_values(draft: ExperimentDraft, flat: Mapping[str, str]) -> ExperimentDraft:
    """Set values of a draft by their dotted names; unknown names are ignored."""
    form = fieldset(draft.method.recipe, draft.values)
    names = {item.name for item in form.all_inputs()}
    names |= {f"{item.name}.kind" for item in form.all_sections() if item.variants}
    changes = nest((name, value) for name, value in flat.items() if name in names)
    return replace(draft, values=merge(draft.values, changes))


def parse_draft(db: Session, sent: Mapping[str, Any]) -> ExperimentDraft:
    """Parse a posted form. If its source was deleted meanwhile, nothing typed is lost."""
    method, source = get_method(str(sent.get("method", DEFAULT_METHOD))), str(sent.get("from", ""))
    own_fields = {name: str(sent.get(name, "")).strip() for name in _OWN_FIELDS}
    own_fields["view"] = own_fields["view"] if own_fields["view"] in VIEWS else VIEWS[0]
    try:
        base = (
            draft_from_source(db, source).initial_values
            if source
            else draft_from_preset(db, method, own_fields["preset"]).initial_values
        )
    except NotFoundError:
        base, source = draft_from_preset(db, method, own_fields["preset"]).initial_values, ""
    values = {name: value for name, value in sent.items() if name not in _NON_RECIPE_FIELDS}
    return ExperimentDraft(
        method=method, source=source, values=values, initial_values=base, **own_fields
    )


def apply_action(
    db: Session, draft: ExperimentDraft, wish: str
) -> tuple[ExperimentDraft, dict[str, str]]:
    """Apply a form action: switch the preset, reset a setting, paste a recipe.

    Returns the new draft, and its problems by field name.
    """
    verb, _colon, name = wish.partition(":")
    if verb == "preset":
        return _switch_preset(db, draft, name), {}
    if verb == "reset":
        return _reset_values(draft, name), {}
    return _paste_recipe(draft) if verb == "paste" else (draft, {})


def find_problems(draft: ExperimentDraft) -> dict[str, str]:
    """Return what is wrong with a draft's settings, by their names."""
    try:
        _ = draft.recipe
    except ValidationError as error:
        return field_problems(error, draft.method.recipe)
    return {}


def get_method(name: str) -> Method:
    if name not in METHODS:
        raise NotFoundError(f"There is no method named {name}.", hint=f"Try {', '.join(METHODS)}.")
    return METHODS[name]


def _switch_preset(db: Session, draft: ExperimentDraft, name: str) -> ExperimentDraft:
    """Apply a preset, but keep the model, the dataset and the precision that the user chose."""
    preset_draft, old_preset = (
        draft_from_preset(db, draft.method, name),
        _find_preset(draft.method, draft.preset),
    )
    old = {"precision": AUTO, **(old_preset.values if old_preset else {})}
    chosen = {
        name: value
        for name, value in _required_choices(draft).items()
        if not is_same_value(str(value), str(old.get(name, "")))
    }
    has_default_name = draft.preset and re.fullmatch(re.escape(draft.preset) + r"-\d+", draft.name)
    return replace(
        preset_draft,
        name=preset_draft.name if has_default_name else draft.name,
        notes=draft.notes,
        view=draft.view,
        values={**preset_draft.values, **chosen},
    )


def _reset_values(draft: ExperimentDraft, name: str) -> ExperimentDraft:
    """Reset one setting to the value it started with; without a name, all settings."""
    if not name:
        return replace(draft, values=draft.initial_values)
    group, _dot, leaf = name.rpartition(".")
    if leaf == "kind":
        return replace(draft, values={**draft.values, group: draft.initial_values.get(group, {})})
    form = fieldset(draft.method.recipe, draft.values, base=draft.initial_values)
    return apply_values(
        draft,
        {control.name: control.initial for control in form.all_inputs() if control.name == name},
    )


def _paste_recipe(draft: ExperimentDraft) -> tuple[ExperimentDraft, dict[str, str]]:
    if not draft.paste:
        return draft, {"paste": "Paste a recipe first."}
    try:
        pasted = parse_recipe(draft.paste, draft.method)
    except InvalidError as error:
        return draft, {"paste": f"{error.message} {error.hint}".strip()}
    # Keep the form's model, dataset and precision if the pasted text does not name them.
    required = _required_choices(draft)
    view = draft.view if draft.view == "simple" else "all"
    pasted_draft = replace(
        draft, method=pasted.method, values={**required, **pasted.values}, view=view
    )
    problems = find_problems(pasted_draft)
    if pasted.problems:
        problems["paste"] = " ".join(pasted.problems)
    return pasted_draft if problems else replace(pasted_draft, paste=""), problems


def _required_choices(draft: ExperimentDraft) -> dict[str, Any]:
    """Return the values that only the user can choose, as far as the draft has them."""
    fields = draft.method.recipe.model_fields
    required = [name for name, info in fields.items() if info.is_required()]
    return {name: draft.values[name] for name in (*required, "precision") if name in draft.values}


def _find_preset(method: Method, name: str) -> Preset | None:
    return next((preset for preset in method.presets if preset.name == name), None)


def _copy_name(name: str) -> str:
    """Return the name of a copy: `tone`, then `tone 2`."""
    stem, number = re.fullmatch(r"(.*?)(?: (\d{1,6}))?", name).groups()  # type: ignore[union-attr] # all texts match
    return f"{stem} {int(number or 1) + 1}"[: experiments.NAME_LIMIT]
