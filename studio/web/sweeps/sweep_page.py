"""Sweeps: the form that creates one, and the page with its trials and best settings."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import Response
from pydantic import ValidationError
from sqlmodel import Session

from studio.db.tables import Sweep
from studio.errors import InvalidError
from studio.evaluation.run_metrics import specs_of
from studio.methods import METHODS, AnyRecipe, direction
from studio.recipe import search_space
from studio.recipe.fields import FieldSpec, discriminators
from studio.recipe.search_space import SearchSpace
from studio.services import experiments, recent_ends
from studio.services.estimates import run_progress
from studio.services.studies import studies
from studio.services.sweeps import sweep_preview, sweeps
from studio.services.sweeps.sweep_preview import SweepPlan
from studio.services.sweeps.sweeps import Trial
from studio.web.forms.recipe_form import Fieldset, Input, fieldset
from studio.web.http.deps import DB, MAX_FORM_FIELDS, ReadDB
from studio.web.i18n import formatting
from studio.web.i18n.locale import gettext
from studio.web.rendering.render import block, page, redirect
from studio.web.runs import seen_runs
from studio.web.sweeps.sweep_plots import build_plots

router = APIRouter(prefix="/sweeps", include_in_schema=False)


PREFIX = "space."
_OWN_FIELDS = {
    "count": "Runs",
    "parallel": "Parallel runs",
    "seed": "Sampling seed",
    "metric": "Optimise for",
}
"""Labels of the form's fields that are not recipe settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepDraft:
    """A sweep as far as the form is filled in; typed text is kept as it is."""

    source: str = ""
    space: Mapping[str, str] = field(default_factory=dict)
    strategy: str = "grid"
    count: str = str(sweep_preview.DEFAULT_RUNS)
    metric: str = ""
    seed: str = "0"
    is_pruning: bool = False
    parallel: str = "1"


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldRow:
    """One setting in the form."""

    input: Input
    text: str
    problem: str

    @property
    def id(self) -> str:
        return f"space-{self.input.id}"

    @property
    def choices(self) -> Sequence[tuple[str, str]]:
        """Options to select, as value and label; empty if the values are typed."""
        if self.input.widget == "checkbox":
            return (("true", "on"), ("false", "off"))
        return [
            (choice, self.input.knob.choice_titles.get(choice, choice))
            for choice in self.input.choices
        ]

    @property
    def selected(self) -> Sequence[str]:
        return self.text.split(", ")


@dataclass(frozen=True, slots=True, kw_only=True)
class FormSection:
    """A section of the recipe, with the settings that can vary."""

    title: str
    rows: Sequence[FieldRow]

    @property
    def simple(self) -> list[FieldRow]:
        return [row for row in self.rows if not row.input.knob.advanced]

    @property
    def advanced(self) -> list[FieldRow]:
        return [row for row in self.rows if row.input.knob.advanced]

    @property
    def is_open(self) -> bool:
        """Whether an advanced setting is set or invalid."""
        return any(row.text or row.problem for row in self.advanced)


async def _parse_draft(request: Request) -> SweepDraft:
    async with request.form(max_fields=MAX_FORM_FIELDS, max_files=0) as form:
        pairs = [(name, str(value).strip()) for name, value in form.multi_items()]
    fields = {name: value for name, value in pairs if not name.startswith(PREFIX)}
    typed: dict[str, list[str]] = {}
    for name, value in pairs:
        if name.startswith(PREFIX) and value:
            typed.setdefault(name.removeprefix(PREFIX), []).append(value[:2000])
    own_values = {
        name: fields[name][:100]
        for name in ("strategy", "count", "metric", "seed", "parallel")
        if name in fields
    }
    return SweepDraft(
        source=fields.get("from", "")[:50],
        space={name: ", ".join(values) for name, values in typed.items()},
        is_pruning=fields.get("is_pruning") == "true" and fields.get("strategy") == "tpe",
        **own_values,
    )


PostedSweepDraft = Annotated[SweepDraft, Depends(_parse_draft)]


def build_plan(draft: SweepDraft, recipe: AnyRecipe) -> SweepPlan:
    """Return the plan that a form describes for a recipe.

    Raises:
        InvalidError: a field is invalid; `param` names it.

    """
    if draft.strategy not in ("grid", "random", "tpe"):
        raise InvalidError("Unknown strategy.", param="strategy")
    if draft.metric and draft.metric not in _metric_names(recipe):
        raise InvalidError("Unknown metric.", param="metric")
    return SweepPlan(
        space=_parse_space(draft),
        strategy=draft.strategy,  # type: ignore[arg-type] # checked above
        count=None if draft.strategy == "grid" else _parse_integer(draft.count, "count"),
        metric=draft.metric or None,
        seed=_parse_integer(draft.seed, "seed"),
        is_pruning=draft.is_pruning,
        parallel=_parse_integer(draft.parallel, "parallel"),
    )


def form_sections(
    recipe: AnyRecipe, draft: SweepDraft, problems: Mapping[str, str]
) -> list[FormSection]:
    """Return the settings of a recipe by section, with what is typed for each."""
    return [
        FormSection(title=title, rows=[_field_row(control, draft, problems) for control in inputs])
        for title, inputs in _recipe_sections(recipe)
        if inputs
    ]


def list_problems(
    sections: Sequence[FormSection], problems: Mapping[str, str]
) -> list[tuple[str, str, str]]:
    """Return each problem with its field's id and label."""
    fields = {name: (name, label) for name, label in _OWN_FIELDS.items()} | {
        row.input.name: (row.id, row.input.knob.label)
        for section in sections
        for row in section.rows
    }
    return [(*fields.get(name, ("", "")), message) for name, message in problems.items()]


def field_labels(recipe: AnyRecipe, names: Sequence[str]) -> dict[str, str]:
    """Return the labels of settings."""
    labels = {
        control.name: _field_label(title, control)
        for title, inputs in _recipe_sections(recipe)
        for control in inputs
    }
    return {name: labels.get(name, name) for name in names}


def _field_label(section: str, control: Input) -> str:
    """Return the label of a setting for a place that does not show its section."""
    return section if control.name.endswith(".kind") else control.knob.label


def metric_choices(recipe: AnyRecipe) -> list[tuple[str, str]]:
    goals = {"higher": "higher is better", "lower": "lower is better"}
    return [
        (name, formatting.metric_title(name) + gettext(", ") + gettext(goals[direction(name)]))
        for name in _metric_names(recipe)
    ]


def _metric_names(recipe: AnyRecipe) -> list[str]:
    """Return the metrics that a sweep can optimise, the method's objective first."""
    method = METHODS[recipe.method]
    evaluated = specs_of("text") if recipe.writes_text else ()
    others = (spec.key for spec in (*method.metrics.all, *evaluated) if spec.is_objective)
    return list(dict.fromkeys((method.objective.key, *others)))


def _parse_space(draft: SweepDraft) -> SearchSpace:
    space: SearchSpace = {}
    for name, text in draft.space.items():
        try:
            space[name] = search_space.parse(text)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            raise InvalidError(first["msg"].removeprefix("Value error, "), param=name) from error
    return space


def _sections(
    section: Fieldset, discriminators: Mapping[str, Sequence[str]]
) -> Iterator[tuple[str, Sequence[Input]]]:
    """Yield the sections; of variants all of them, after the choice between them."""
    yield section.title if section.name else "What to train", section.inputs
    for subsection in section.sections:
        if not subsection.variants:
            yield from _sections(subsection, discriminators)
            continue
        name = next(item for item in discriminators if item.rpartition(".")[0] == subsection.name)
        yield subsection.title, [_variant_input(subsection, name)]
        seen_names: set[str] = set()
        for kind in subsection.variants:
            yield kind.title, [item for item in kind.inputs if item.name not in seen_names]
            seen_names |= {item.name for item in kind.inputs}


def _variant_input(section: Fieldset, name: str) -> Input:
    """Return the choice between the variants of a section as an ordinary setting."""
    titles = {kind.variant: kind.title for kind in section.variants}
    return Input(
        name=name,
        widget="select",
        knob=FieldSpec("Kind", choice_titles=titles),
        help=section.intro,
        value=section.variant,
        problem="",
        initial=section.variant,
        default=section.variant,
        choices=tuple(titles),
    )


def _recipe_sections(recipe: AnyRecipe) -> Iterator[tuple[str, Sequence[Input]]]:
    section = METHODS[recipe.method].recipe
    return _sections(fieldset(section, recipe.model_dump()), discriminators(section))


def _field_row(control: Input, draft: SweepDraft, problems: Mapping[str, str]) -> FieldRow:
    return FieldRow(
        input=control,
        text=draft.space.get(control.name, ""),
        problem=problems.get(control.name, ""),
    )


def _parse_integer(text: str, param: str) -> int:
    if not text.isascii() or not text.isdecimal() or int(text) >= 2**31:
        raise InvalidError("Enter a whole number.", param=param)
    return int(text)


MAX_LISTED = 100

Source = Annotated[str, Query(alias="from", max_length=50)]


@router.get("")
def newest(request: Request, db: DB) -> Response:
    return page(
        request,
        "sweeps/list.html",
        sweeps=sweeps.newest(db, limit=MAX_LISTED),
        newest=next(iter(experiments.newest(db, limit=1)), None),
    )


@router.get("/new")
def new(request: Request, db: DB, source: Source = "", experiment: int | None = None) -> Response:
    """Show the form, or without a recipe to start from, the experiments to choose from."""
    if not source and experiment is None:
        listed = experiments.newest(db, limit=MAX_LISTED)
        return page(request, "sweeps/choose.html", experiments=listed)
    return _form(request, db, SweepDraft(source=source or f"experiment:{experiment}"))


@router.post("/new")
def create(request: Request, draft: PostedSweepDraft, seen: ReadDB, db: DB) -> Response:
    _experiment, recipe = studies.resolve_source(seen, draft.source)
    try:
        plan = build_plan(draft, recipe)
        # Checking hundreds of settings takes a while: the database is locked only after it.
        preview = sweep_preview.preview(seen, recipe, plan)
    except InvalidError as error:
        return _form(request, seen, draft, error)
    source_experiment, _recipe = studies.resolve_source(db, draft.source)
    experiment = experiments.own_or_copy(db, source_experiment, parent=draft.source)
    sweep = sweeps.create(db, experiment, plan, recipe, preview)
    return redirect(request, f"/sweeps/{sweep.id}")


@router.post("/new/prospect")
def preview_sweep(request: Request, draft: PostedSweepDraft, db: ReadDB) -> Response:
    """Preview the sweep that the form describes; nothing is written."""
    _experiment, recipe = studies.resolve_source(db, draft.source)
    context: dict[str, Any] = {"prospect": None, "problem": None}
    try:
        plan = build_plan(draft, recipe)
        context["prospect"] = sweep_preview.preview(db, recipe, plan)
    except InvalidError as error:
        context["problem"] = error
    return block(request, "sweeps/new.html", "prospect", strategy=draft.strategy, **context)


@router.get("/{sweep_id}")
def show(request: Request, sweep_id: int, db: DB) -> Response:
    sweep = sweeps.get(db, sweep_id)
    all_trials = sweeps.list_trials(db, sweep)
    best = sweeps.best(sweep, all_trials)
    response = page(
        request,
        "sweeps/show.html",
        sweep=sweep,
        trials=all_trials,
        best=best,
        ended=sum(trial.run.status.is_final for trial in all_trials),
        done=sum(trial.state == "done" for trial in all_trials),
        enough=sweeps.MIN_TRIALS,
        labels=field_labels(sweep.recipe, list(sweep.space)),
        unit=METHODS[sweep.recipe.method].metrics.unit(sweep.metric),
        plots=build_plots(sweep, all_trials, best),
        left=_seconds_left(sweep, all_trials),
        progress_of=run_progress.measure,
    )
    if sweep.status.is_final:
        seen_runs.mark_seen(request, response, recent_ends.group_key(sweep, sweep.finished_at))
    return response


@router.post("/{sweep_id}/{verb}")
def control_sweep(request: Request, sweep_id: int, verb: str, db: DB) -> Response:
    actions = {"pause": sweeps.pause, "resume": sweeps.resume, "stop": sweeps.stop}
    if verb == "delete":
        experiment_id = sweeps.get(db, sweep_id).experiment_id
        sweeps.delete(db, sweep_id)
        return redirect(request, f"/experiments/{experiment_id}")
    if verb not in actions:
        raise InvalidError(f"A sweep cannot {verb}.")
    actions[verb](db, sweep_id)
    return redirect(request, f"/sweeps/{sweep_id}")


def _form(
    request: Request, db: Session, draft: SweepDraft, problem: InvalidError | None = None
) -> Response:
    experiment, recipe = studies.resolve_source(db, draft.source)
    problems = {problem.param: f"{problem.message} {problem.hint}".strip()} if problem else {}
    sections = form_sections(recipe, draft, problems)
    return page(
        request,
        "sweeps/new.html",
        status=422 if problem else 200,
        experiment=experiment,
        draft=draft,
        parts=sections,
        problems=problems,
        listed=list_problems(sections, problems),
        metrics=metric_choices(recipe),
        most=sweep_preview.MAX_RUNS,
        prospect=None,
        problem=None,
        strategy=draft.strategy,
    )


def _seconds_left(sweep: Sweep, all_trials: list[Trial]) -> float | None:
    """Estimate how many seconds a sweep still takes, from the runs that are done."""
    durations = [
        seconds
        for trial in all_trials
        if trial.state == "done" and (seconds := run_progress.measure(trial.run).total_seconds)
    ]
    if not durations or sweep.status.is_final:
        return None
    ended = (
        sum(trial.run.status.is_final for trial in all_trials) + sweep.submitted - len(all_trials)
    )
    return (sweep.count - ended) * sum(durations) / len(durations) / sweep.parallel
