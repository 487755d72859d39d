"""The summary beside the experiment form: what will run, and what is still missing."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlmodel import Session

from studio.errors import InvalidError, StudioError
from studio.methods import AnyRecipe
from studio.recipe.precision import PRECISIONS
from studio.services import experiments
from studio.services.datasets import datasets, token_preview
from studio.services.precision import recommendation
from studio.services.runs import recipe_parents, runs
from studio.services.runs.recipe_parents import RecipeParent
from studio.settings import Settings
from studio.web.experiments import config_diff, draft_form
from studio.web.experiments.code_snippets import Submission
from studio.web.experiments.config_diff import Change
from studio.web.experiments.draft_form import ExperimentDraft
from studio.web.forms.recipe_form import Fieldset
from studio.web.i18n import formatting
from studio.web.i18n.locale import gettext, ngettext
from studio.web.i18n.translation import translate


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
    """The fields that revert all changes, by their dotted names, as JSON."""
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
    form_problems, recipe = (
        list_problems(form, problems),
        None if draft_form.find_problems(draft) else draft.recipe,
    )
    changes, parent = config_diff.form_changes(form), recipe_parents.find_or_none(db, draft.parent)
    return SubmissionSummary(
        summary=_summary_sentence(db, recipe) if recipe else "",
        parent=parent,
        based_on=parent.title if parent else _preset_title(draft),
        changes=changes,
        revert_values=config_diff.revert_values(changes),
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
    problems = draft_form.find_problems(draft)
    try:
        if not problems:
            runs.check(db, draft.recipe)
    except InvalidError as error:
        problems[error.param] = f"{error.message} {error.hint}".strip()
    try:
        experiments.clean_name(draft.name)
    except InvalidError as error:
        problems["name"] = f"{error.message} {error.hint}".strip()
    return problems


def list_problems(form: Fieldset, problems: Mapping[str, str]) -> list[FormProblem]:
    """Return each problem with its field's id and label, in the order of the form."""
    places = {"paste": ("paste", "Pasted recipe"), "name": ("name", "Name")}
    places |= {control.name: (control.id, control.knob.label) for control in form.all_inputs()}
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
    if adapter.kind == "full":
        yield gettext("Full fine-tune of %(model)s") % names
    elif adapter.quantised:
        quantisation = {"rank": adapter.r, "kept": adapter.quantised.title}
        yield gettext("LoRA adapter (rank %(rank)s) for %(model)s with %(kept)s weights") % (
            names | quantisation
        )
    else:
        rank = {"rank": adapter.r}
        yield gettext("LoRA adapter (rank %(rank)s) for %(model)s") % (names | rank)
    yield gettext("on %(dataset)s") % names
    if optimisation.max_steps:
        yield gettext("at most %(steps)s steps") % {
            "steps": formatting.number(optimisation.max_steps)
        }
    else:
        epochs = formatting.number(optimisation.num_train_epochs)
        # Fractions of an epoch take the plural.
        count = 1 if optimisation.num_train_epochs == 1 else 2
        yield ngettext("%(epochs)s epoch", "%(epochs)s epochs", count) % {"epochs": epochs}
    yield gettext("in %(precision)s") % {"precision": translate(PRECISIONS[recipe.precision].title)}


def _first_row(db: Session, settings: Settings, name: str) -> Mapping[str, Any] | None:
    try:
        position = token_preview.nearest_row(db, datasets.require(db, name), "train", 1)
        return token_preview.read_row(settings.datasets, position)
    except StudioError:
        return None


def _submission(
    db: Session, settings: Settings, draft: ExperimentDraft, recipe: AnyRecipe, address: str
) -> Submission:
    """Return what would be submitted. Programs on the same machine read the token from the home."""
    token_variable = "STUDIO_TOKEN" if settings.sign_in == "accounts" else ""
    return Submission(
        address=address,
        name=draft.name,
        notes=draft.notes,
        parent=draft.parent,
        recipe=recipe,
        dataset_id=datasets.require(db, recipe.dataset).id or 0,
        token=settings.api_token if settings.sign_in == "link" else token_variable,
    )
