"""The form that creates an experiment, and the previews it shows while you fill it in."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import RedirectResponse, Response
from sqlmodel import Session

from studio.db.session import read_session
from studio.db.tables import Experiment
from studio.intake.files.formats import ACCEPTED_EXTENSIONS, SUPPORTED_FORMATS
from studio.methods import DEFAULT_METHOD, METHODS, AnyRecipe, get_method
from studio.services import experiments
from studio.services.datasets import token_stats
from studio.services.estimates import measurements, model_catalogue
from studio.services.models import downloads
from studio.services.precision import recommendation
from studio.services.runs import runs
from studio.services.workers import workers
from studio.settings import Settings
from studio.web.experiments import decisions, draft_form, recipe_preview
from studio.web.experiments.draft_form import ExperimentDraft
from studio.web.experiments.reward_choice import learns_from_scores
from studio.web.forms import choices
from studio.web.forms.recipe_form import Problems, fieldset
from studio.web.graders import trial_form
from studio.web.http.deps import DB, Config, ConfigWithSecrets, PostedForm, ReadDB
from studio.web.models import model_page
from studio.web.rendering.render import block, page, redirect

router = APIRouter(prefix="/new", include_in_schema=False)

_OWN_PARAMS = {"method", "preset", "model", "from", "name", "notes"}
_DECISIONS = {"name", "dataset", "base_model"}
"""Fields that are always visible; all others are among the settings, which may be closed."""
_SWITCHES = ("method:", "preset:", "choose:")
"""Actions of the decisions; all others are pressed among the settings."""


@router.get("")
def new(
    request: Request,
    db: DB,
    method: str = "",
    preset: str = "",
    model: Annotated[str, Query(max_length=4096)] = "",
    source: Annotated[str, Query(alias="from", max_length=50)] = "",
) -> Response:
    """Show the form. The URL can set any setting: `/new?from=run:12&precision=fp32`."""
    config, chosen = request.app.state.settings, get_method(method or DEFAULT_METHOD)
    fresh = draft_form.draft_from_preset(db, config, chosen, preset)
    draft = draft_form.draft_from_source(db, config, source, method) if source else fresh
    params = request.query_params
    draft = replace(draft, name=params.get("name", draft.name), notes=params.get("notes", ""))
    values = {key: value for key, value in params.items() if key not in _OWN_PARAMS}
    if model:
        values["base_model"] = model
    return show_form(request, db, draft_form.apply_values(draft, values), {})


@router.post("")
def create(request: Request, posted: PostedForm, db: DB, config: Config) -> Response:
    return submit(request, db, draft_form.parse_draft(db, config, posted))


@router.post("/sweep")
def create_for_sweep(request: Request, posted: PostedForm, db: DB, config: Config) -> Response:
    """Save the form as an experiment without a run, to vary its settings in a sweep."""
    return _create(request, db, draft_form.parse_draft(db, config, posted), _begin_sweep)


@router.get("/draft")
def redirect_to_form() -> Response:
    """Redirect a reload of this POST-only page to the form."""
    return RedirectResponse("/new", status_code=303)


@router.post("/draft")
def redraw_form(request: Request, posted: PostedForm, db: ReadDB, config: Config) -> Response:
    """Redraw the form after an action: switch the preset, reset a setting, paste a recipe."""
    action = str(posted.get("do", ""))
    posted_draft = draft_form.parse_draft(db, config, posted)
    draft, problems = draft_form.apply_action(db, config, posted_draft, action)
    is_open = not action.startswith(_SWITCHES)
    response = show_form(request, db, draft, problems, is_open=is_open)
    response.headers["HX-Push-Url"] = draft_url(draft)
    return response


@router.post("/advice")
def preview_recipe(request: Request, posted: PostedForm, config: Config) -> Response:
    """Preview the form's recipe. Nothing is written, so no other request has to wait."""
    with read_session(request.app.state.engine) as db:
        draft = draft_form.parse_draft(db, config, posted)
        preview = recipe_preview.build_preview(db, draft.recipe)
        form = fieldset(draft.method.recipe, draft.values, base=draft.initial_values)
        summary = draft_form.summarize(db, config, draft, form, str(request.base_url))
        decided = decisions.describe(db, config, draft, preview)
    return page(
        request,
        "experiments/preview.html",
        preview=preview,
        outline=summary,
        decisions=decided,
        form=form,
    )


@router.post("/models")
def list_models(request: Request, posted: PostedForm, db: ReadDB, config: Config) -> Response:
    """List the base models to choose from, with the memory that the form's recipe needs."""
    draft = draft_form.parse_draft(db, config, posted)
    return block(
        request,
        "experiments/new.html",
        "models",
        models=model_catalogue.list_entries(db, draft.recipe, draft.method),
        chosen=str(draft.values.get("base_model", "")),
    )


@router.get("/hub")
def search_hub(
    request: Request, config: ConfigWithSecrets, q: Annotated[str, Query(max_length=200)] = ""
) -> Response:
    """Search the Hub for base models. It may be slow, so the database is opened afterwards."""
    search = model_page.search_hub(config, q)
    with read_session(request.app.state.engine) as db:
        context = model_page.search_context(db, config, q, search)
        room = workers.training_hardware(db).usable_memory_bytes
    return block(
        request,
        "experiments/new.html",
        "hub",
        found=context["offers"],
        trouble=context["trouble"],
        asked=context["asked"],
        words=q,
        room=room,
    )


@router.post("/calibrate")
def start_calibration(request: Request, posted: PostedForm, db: DB, config: Config) -> Response:
    """Queue a calibration: train a few steps of the form's recipe to improve its estimate."""
    task = measurements.enqueue_calibration(db, _startable_recipe(db, config, posted), config)
    return block(request, "experiments/new.html", "calibration", chore=task)


@router.get("/calibrated")
def after_calibration(request: Request) -> Response:
    """Make the form refresh its estimate after a calibration."""
    return block(request, "experiments/new.html", "calibrated")


@router.post("/measure")
def start_dry_run(request: Request, posted: PostedForm, db: DB, config: Config) -> Response:
    """Queue a dry run: simulate one step of the form's recipe to make its estimate exact."""
    task = measurements.enqueue_dry_run(db, _startable_recipe(db, config, posted), config)
    return block(request, "experiments/new.html", "measurement", dry=task)


@router.post("/lengths")
def count_tokens(request: Request, posted: PostedForm, db: DB, config: Config) -> Response:
    """Queue a count of the dataset's tokens, as the form's model sees them, for its estimate."""
    task = token_stats.enqueue(
        db,
        config,
        token_stats.recipe_request(db, draft_form.parse_draft(db, config, posted).require_recipe()),
    )
    return block(request, "experiments/new.html", "counting", count=task)


@router.get("/measured")
def after_measurement(request: Request) -> Response:
    """Make the form refresh its memory estimate after a dry run."""
    return block(request, "experiments/new.html", "measured")


def submit(request: Request, db: Session, draft: ExperimentDraft) -> Response:
    """Queue a run of a draft and show it, or show the form with the draft's problems."""
    return _create(request, db, draft, _submit_run)


def _create(
    request: Request,
    db: Session,
    draft: ExperimentDraft,
    next_step: Callable[[Session, ExperimentDraft], str],
) -> Response:
    # Check everything before writing anything.
    if problems := draft_form.find_problems(db, draft):
        return show_form(request, db, draft, problems)
    return redirect(request, next_step(db, draft))


def _submit_run(db: Session, draft: ExperimentDraft) -> str:
    """Queue a run, or continue with the study form. Return the URL to go to."""
    experiment = _create_experiment(db, draft)
    if draft.is_study:
        return f"/reports/precision/new?from=experiment:{experiment.id}"
    return f"/runs/{runs.submit(db, experiment).id}"


def _begin_sweep(db: Session, draft: ExperimentDraft) -> str:
    return f"/sweeps/new?from=experiment:{_create_experiment(db, draft).id}"


def _create_experiment(db: Session, draft: ExperimentDraft) -> Experiment:
    return experiments.create(
        db, draft.name, draft.require_recipe(), notes=draft.notes, parent=draft.parent
    )


def _startable_recipe(db: Session, config: Settings, posted: Mapping[str, Any]) -> AnyRecipe:
    """Return the recipe of a form, after checking that it could start."""
    recipe = recommendation.resolve_precision(
        db, draft_form.parse_draft(db, config, posted).require_recipe()
    ).recipe
    runs.check(db, recipe)
    return recipe


def show_form(
    request: Request,
    db: Session,
    draft: ExperimentDraft,
    problems: Problems,
    *,
    is_open: bool = False,
) -> Response:
    """Show a draft in the form; its settings are open if one of them is wrong."""
    if problems and draft.view not in ("simple", "all"):
        draft = replace(draft, view="all")
    form = fieldset(draft.method.recipe, draft.values, problems, draft.initial_values)
    settings, address = request.app.state.settings, str(request.base_url)
    preview = recipe_preview.build_preview(db, draft.recipe)
    return page(
        request,
        "experiments/new.html",
        status=422 if problems else 200,
        draft=draft,
        methods=METHODS.values(),
        form=form,
        name={"value": draft.name, "problem": problems.get("name", "")},
        paste={"value": draft.paste, "problem": problems.get("paste", "")},
        problems=draft_form.list_problems(form, problems),
        preview=preview,
        decisions=decisions.describe(db, settings, draft, preview),
        is_open=is_open or draft.view != "simple" or bool(problems.keys() - _DECISIONS),
        outline=draft_form.summarize(db, settings, draft, form, address),
        bench_of=trial_form.bench_context() if learns_from_scores(draft.method) else None,
        sight=None,
        precisions=choices.precision_options(workers.training_hardware(db)),
        choices={"dataset": choices.dataset_options(db, form.input("dataset").value, draft.method)},
        suggestions={"base_model": choices.model_names(db)},
        models=model_catalogue.list_entries(db, draft.recipe, draft.method),
        host=downloads.hub_client(settings).host,
        accepted=ACCEPTED_EXTENSIONS,
        formats=SUPPORTED_FORMATS,
        limit=settings.upload_limit_bytes,
        ahead=_count_runs_ahead(db),
        has_worker=workers.count_slots(db) > 0,
        machine=workers.training_hardware(db).title,
    )


def draft_url(draft: ExperimentDraft) -> str:
    """Return the address of the form as it was when a draft started."""
    start = f"from={draft.source}" if draft.source else f"preset={draft.preset}"
    is_default = draft.source or draft.method.name == DEFAULT_METHOD
    return f"/new?{start}" if is_default else f"/new?method={draft.method.name}&{start}"


def _count_runs_ahead(db: Session) -> int:
    """Return how many runs have to end before the next one starts."""
    slots = max(1, workers.count_slots(db))
    unfinished = runs.count_unfinished(db)
    return unfinished.waiting + max(0, unfinished.running - slots + 1)
