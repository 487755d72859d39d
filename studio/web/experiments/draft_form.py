"""Drafts of the experiment form: start from a preset or a source, parse, apply form actions.

The summary beside the form says what a draft changes, what will run, and what is still missing.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

from pydantic import ValidationError
from sqlmodel import Session

from studio.db.tables import Dataset
from studio.errors import InvalidError, NotFoundError, StudioError
from studio.methods import (
    DEFAULT_METHOD,
    METHODS,
    RECIPE_ADAPTER,
    AnyRecipe,
    get_method,
)
from studio.methods.base import Method, Preset
from studio.recipe.adapters import Adapter, Lora
from studio.recipe.dotted_keys import merge, nest
from studio.recipe.precision import AUTO, PRECISIONS
from studio.services import experiments
from studio.services.datasets import data_quality, datasets, token_preview, versions
from studio.services.estimates import model_catalogue
from studio.services.models import models
from studio.services.precision import recommendation
from studio.services.runs import recipe_parents, runs
from studio.services.runs.recipe_parents import RecipeParent
from studio.settings import Settings
from studio.web.experiments.code_snippets import Submission
from studio.web.experiments.recipe_changes import Change, form_changes, revert_values
from studio.web.experiments.reward_choice import fit_reward
from studio.web.experiments.teacher_choice import fit_teacher
from studio.web.experiments.yaml_paste import parse_recipe
from studio.web.forms import choices
from studio.web.forms.recipe_form import (
    Fieldset,
    field_problems,
    fieldset,
    is_same_value,
    nested_values,
    parse_posted,
)
from studio.web.http.api_access import access_for
from studio.web.i18n import formatting
from studio.web.i18n.locale import gettext, ngettext
from studio.web.i18n.translation import translate

VIEWS = ("simple", "all", "yaml", "curl", "python", "openai")
_OWN_FIELDS = ("name", "notes", "preset", "view", "paste")
_NON_RECIPE_FIELDS = {*_OWN_FIELDS, "from", "look", "do"}
"""What a form posts besides its recipe, such as the row that the token preview shows."""


@dataclass(frozen=True, kw_only=True)
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
    def recipe(self) -> AnyRecipe | None:
        """The recipe; None while a value is missing or invalid."""
        return self._parsed[0]

    @property
    def problems(self) -> dict[str, str]:
        """What is wrong with the settings, by their names."""
        return dict(self._parsed[1])

    @cached_property
    def _parsed(self) -> tuple[AnyRecipe | None, dict[str, str]]:
        posted = parse_posted(self.method.recipe, self.values) | {"method": self.method.name}
        try:
            return RECIPE_ADAPTER.validate_python(posted, strict=False), {}
        except ValidationError as error:
            return None, field_problems(error, self.method.recipe)

    def require_recipe(self) -> AnyRecipe:
        """Return the recipe.

        Raises:
            InvalidError: a value is missing or invalid.

        """
        if self.recipe is None:
            raise InvalidError("The form is incomplete or has errors.", hint="Correct it first.")
        return self.recipe

    @property
    def parent(self) -> str:
        """The parent of its recipe, as `run:12`, or empty."""
        return self.source if self.source.startswith(("run:", "experiment:")) else ""

    @property
    def is_study(self) -> bool:
        return any(preset.is_study for preset in self.method.presets if preset.name == self.preset)


def draft_from_preset(
    db: Session, settings: Settings, method: Method, preset: str
) -> ExperimentDraft:
    """Start from a preset, with what suits this machine and the dataset."""
    start = _find_preset(method, preset) or method.presets[0]
    last = next(iter(experiments.newest(db, limit=1)), None)
    number = (last.id or 0) + 1 if last else 1
    values = {"precision": AUTO, **start.values}
    if "base_model" not in values:
        values["base_model"] = model_catalogue.suggest(db, method)
    if "dataset" not in values and (fitting := choices.fitting_datasets(db, method)):
        values["dataset"] = fitting[0]
    values = fit_teacher(db, method, values)
    values = fit_reward(db, settings, method, values)
    name = f"{start.name}-{number}"
    return ExperimentDraft(
        method=method, preset=start.name, name=name, values=values, initial_values=values
    )


def draft_from_source(
    db: Session, settings: Settings, source: str, method_name: str = ""
) -> ExperimentDraft:
    """Start from the recipe of a run or an experiment, or from a dataset: `run:12`.

    Raises:
        NotFoundError: the source does not exist.

    """
    kind, _colon, number = source.partition(":")
    if kind == "dataset" and number.isdecimal():
        dataset = datasets.get(db, int(number))
        draft = draft_from_preset(db, settings, _method_for(db, dataset, method_name), "")
        values = fit_reward(db, settings, draft.method, {**draft.values, "dataset": dataset.name})
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
    """Set values of a draft by their dotted names or posted ones; unknown names are ignored."""
    form = fieldset(draft.method.recipe, draft.values)
    names = {name for item in form.all_inputs() for name in (item.name, item.field)}
    names |= {f"{item.name}.kind" for item in form.all_sections() if item.variants}
    known = {name: value for name, value in flat.items() if name in names}
    # A setting that several variants have is set in all of them.
    copies = {
        item.posted: known[item.name]
        for item in form.all_inputs()
        if item.posted and item.name in known
    }
    return replace(draft, values=merge(draft.values, nest((copies | known).items())))


def parse_draft(db: Session, settings: Settings, sent: Mapping[str, Any]) -> ExperimentDraft:
    """Parse a posted form. If its source was deleted meanwhile, nothing typed is lost."""
    method, source = get_method(str(sent.get("method", DEFAULT_METHOD))), str(sent.get("from", ""))
    own_fields = {name: str(sent.get(name, "")).strip() for name in _OWN_FIELDS}
    own_fields["view"] = own_fields["view"] if own_fields["view"] in VIEWS else VIEWS[0]
    try:
        base = (
            draft_from_source(db, settings, source, method.name).initial_values
            if source
            else draft_from_preset(db, settings, method, own_fields["preset"]).initial_values
        )
    except NotFoundError:
        preset_draft = draft_from_preset(db, settings, method, own_fields["preset"])
        base, source = preset_draft.initial_values, ""
    values = {name: value for name, value in sent.items() if name not in _NON_RECIPE_FIELDS}
    return ExperimentDraft(
        method=method, source=source, values=values, initial_values=base, **own_fields
    )


def apply_action(
    db: Session, settings: Settings, draft: ExperimentDraft, action: str
) -> tuple[ExperimentDraft, dict[str, str]]:
    """Apply a form action: switch method or preset, choose or reset a setting, paste a recipe.

    Returns the new draft, and its problems by field name.
    """
    verb, _colon, name = action.partition(":")
    if verb == "method":
        return _switch_method(db, settings, draft, name), {}
    if verb == "preset":
        return _switch_preset(db, settings, draft, name), {}
    if verb == "reset":
        return _reset_values(draft, name), {}
    if verb == "choose":
        field, _equals, value = name.partition("=")
        return apply_values(draft, {field: value}), {}
    return _paste_recipe(draft) if verb == "paste" else (draft, {})


def _method_for(db: Session, dataset: Dataset, name: str) -> Method:
    """Return the method with a name, or else the most suitable one for a dataset."""
    current = versions.current_by_dataset(db, [dataset]).get(dataset.id or 0)
    fitting = data_quality.fitting_methods(current) if current and not name else []
    return fitting[0] if fitting else get_method(name or DEFAULT_METHOD)


def _switch_method(
    db: Session, settings: Settings, draft: ExperimentDraft, name: str
) -> ExperimentDraft:
    """Start another method's form with the precision and, if they fit, the model and the dataset.

    An adapter that continues from a run belongs to the model.
    """
    fresh = draft_from_preset(db, settings, get_method(name), draft.preset)
    chosen = {key: value for key, value in _required_choices(draft).items() if value}
    if not choices.is_trainable(db, str(chosen.get("base_model", "")), fresh.method):
        chosen.pop("base_model", None)
    if chosen.get("dataset") not in choices.fitting_datasets(db, fresh.method):
        chosen.pop("dataset", None)
    kept = replace(fresh, notes=draft.notes, view=draft.view)
    adapter = nested_values(parse_posted(draft.method.recipe, draft.values), "adapter")
    if adapter.get("continue_from"):
        chosen["adapter"] = adapter
    values = fit_reward(db, settings, fresh.method, {**fresh.values, **chosen})
    return replace(kept, values=values)


def _switch_preset(
    db: Session, settings: Settings, draft: ExperimentDraft, name: str
) -> ExperimentDraft:
    """Apply a preset, but keep the model, the dataset and the precision that the user chose."""
    preset_draft, old_preset = (
        draft_from_preset(db, settings, draft.method, name),
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
        values=fit_reward(db, settings, draft.method, {**preset_draft.values, **chosen}),
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
        {control.field: control.initial for control in form.all_inputs() if control.field == name},
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
    problems = pasted_draft.problems
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


class FormProblem(NamedTuple):
    """A problem that keeps the form from being submitted."""

    id: str
    """Id of the field to fix; empty if there is none."""
    label: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmissionSummary:
    summary: str
    """What will run; empty while the form is invalid."""
    parent: RecipeParent | None
    based_on: str
    """What it started from, in words."""
    changes: list[Change]
    revert_values: str
    """The fields that revert all changes, by their names, as JSON."""
    problems: list[FormProblem]
    button_label: str
    """The label of the Start button: it names what is missing, if anything."""
    first_row: Mapping[str, Any] | None
    """The first row it will train on."""
    non_default_count: int
    """Number of settings that are not at their defaults."""
    submission: Submission | None
    """None while the form cannot be submitted."""


def summarize(
    db: Session, settings: Settings, draft: ExperimentDraft, form: Fieldset, address: str
) -> SubmissionSummary:
    problems = find_problems(db, draft)
    form_problems, recipe = list_problems(form, problems), draft.recipe
    changes, parent = form_changes(form), recipe_parents.find_or_none(db, draft.parent)
    return SubmissionSummary(
        summary=_summary_sentence(db, recipe) if recipe else "",
        parent=parent,
        based_on=parent.title if parent else _preset_title(draft),
        changes=changes,
        revert_values=revert_values(changes),
        problems=form_problems,
        button_label=_button_label(draft, form_problems),
        first_row=_first_row(db, settings, form.input("dataset").value),
        non_default_count=sum(
            not control.is_default for control in form.active_inputs() if control.default
        ),
        submission=_submission(db, settings, draft, recipe, address)
        if recipe and not form_problems
        else None,
    )


def find_problems(db: Session, draft: ExperimentDraft) -> dict[str, str]:
    """Return everything that keeps a draft from being submitted, by field name."""
    problems = _decision_problems(db, draft) | draft.problems
    try:
        if draft.recipe and not problems:
            runs.check(db, draft.recipe)
    except InvalidError as error:
        problems[error.param] = f"{error.message} {error.hint}".strip()
    try:
        experiments.clean_name(draft.name)
    except InvalidError as error:
        problems["name"] = f"{error.message} {error.hint}".strip()
    return problems


def _decision_problems(db: Session, draft: ExperimentDraft) -> dict[str, str]:
    """Return what is wrong with the chosen dataset and model, whatever else is wrong."""
    problems: dict[str, str] = {}
    for name, require in (("dataset", versions.require), ("base_model", models.require)):
        try:
            if value := str(draft.values.get(name, "")):
                require(db, value)
        except InvalidError as error:
            problems[name] = f"{error.message} {error.hint}".strip()
    return problems


def list_problems(form: Fieldset, problems: Mapping[str, str]) -> list[FormProblem]:
    """Return each problem with its field's id and label, in the order of the form."""
    places = {"paste": ("paste", "Pasted recipe"), "name": ("name", "Name")}
    places |= {control.name: (control.id, control.knob.label) for control in form.active_inputs()}
    order = [*places, *(name for name in problems if name not in places)]
    names = [name for name in order if name in problems]
    return [FormProblem(*places.get(name, ("", "")), problems[name]) for name in names]


def _button_label(draft: ExperimentDraft, problems: list[FormProblem]) -> str:
    if not problems:
        return "Next: choose precisions" if draft.is_study else "Start"
    if len(problems) > 1:
        return f"Fix {len(problems)} settings to start"
    return f"Fix {problems[0].label or 'the recipe'} to start"


def _preset_title(draft: ExperimentDraft) -> str:
    titles = {preset.name: preset.title for preset in draft.method.presets}
    return titles.get(draft.preset, "the defaults")


def _summary_sentence(db: Session, recipe: AnyRecipe) -> str:
    try:
        resolved = recommendation.resolve_precision(db, recipe).recipe
    except InvalidError:
        return ""  # The model does not exist, so no precision can be recommended.
    return gettext(", ").join(_summary_parts(resolved)) + gettext(".")


def _summary_parts(recipe: AnyRecipe) -> Iterator[str]:
    adapter, optimisation = recipe.adapter, recipe.optimisation
    names = {"model": recipe.base_model, "dataset": recipe.dataset}
    if adapter.kind == "full" and adapter.trained.is_everything:
        yield gettext("Full fine-tune of %(model)s") % names
    elif adapter.kind == "full":
        yield gettext("Fine-tune of a part of %(model)s") % names
    else:
        yield _adapter_words(adapter, recipe.base_model)
    yield gettext("on %(dataset)s") % names
    if optimisation.max_minutes:
        yield gettext("at most %(duration)s") % {
            "duration": formatting.duration(optimisation.max_minutes * 60)
        }
    elif optimisation.max_steps:
        yield gettext("at most %(steps)s steps") % {
            "steps": formatting.number(optimisation.max_steps)
        }
    else:
        epochs = formatting.number(optimisation.num_train_epochs)
        # Fractions of an epoch take the plural.
        count = 1 if optimisation.num_train_epochs == 1 else 2
        yield ngettext("%(epochs)s epoch", "%(epochs)s epochs", count) % {"epochs": epochs}
    yield gettext("in %(precision)s") % {"precision": translate(PRECISIONS[recipe.precision].title)}


def _adapter_words(adapter: Adapter, model: str) -> str:
    names: dict[str, Any] = {"model": model}
    if isinstance(adapter, Lora):
        names["rank"] = adapter.r
    if adapter.quantised:
        names["kept"] = adapter.quantised.title
        text = {
            "lora": gettext("LoRA adapter (rank %(rank)s) for %(model)s with %(kept)s weights"),
            "oft": gettext("OFT adapter for %(model)s with %(kept)s weights"),
            "ia3": gettext("IA3 adapter for %(model)s with %(kept)s weights"),
        }
    else:
        text = {
            "lora": gettext("LoRA adapter (rank %(rank)s) for %(model)s"),
            "oft": gettext("OFT adapter for %(model)s"),
            "ia3": gettext("IA3 adapter for %(model)s"),
        }
    return text[adapter.kind] % names


def _first_row(db: Session, settings: Settings, name: str) -> Mapping[str, Any] | None:
    try:
        position = token_preview.nearest_row(db, datasets.require(db, name), "train", 1)
        return token_preview.read_row(settings.datasets, position)
    except StudioError:
        return None


def _submission(
    db: Session, settings: Settings, draft: ExperimentDraft, recipe: AnyRecipe, address: str
) -> Submission:
    """Return what would be submitted."""
    return Submission(
        access=access_for(settings, address),
        name=draft.name,
        notes=draft.notes,
        parent=draft.parent,
        recipe=recipe,
        dataset_id=datasets.require(db, recipe.dataset).id or 0,
    )
