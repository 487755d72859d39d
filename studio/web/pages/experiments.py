"""The form that makes an experiment, and the page of one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

from fastapi import APIRouter, Form, Query, Request
from fastapi.responses import Response
from pydantic import ValidationError
from sqlmodel import Session

from studio.db.session import reading
from studio.db.tables import Run
from studio.errors import InvalidError, NotFoundError
from studio.hardware import detect
from studio.methods import METHODS, RECIPES, AnyRecipe
from studio.methods.base import Method
from studio.recipe import yaml
from studio.services import (
    calibrations,
    datasets,
    experiments,
    measurements,
    progress,
    queue,
    runs,
    workers,
)
from studio.web import choices, preview
from studio.web.deps import DB, Config, Posted
from studio.web.forms import Fieldset, Problems, fieldset, problems_in, tidy
from studio.web.render import block, go, page

router = APIRouter(include_in_schema=False)

DEFAULT = next(iter(METHODS))


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """An experiment as far as it is filled in."""

    method: Method
    preset: str
    name: str
    notes: str
    values: Mapping[str, Any]
    """The recipe's values, as a person typed them or as another recipe has them."""


@router.get("/new")
def new(
    request: Request,
    db: DB,
    method: str = DEFAULT,
    preset: str = "",
    model: Annotated[str, Query(max_length=4096)] = "",
    source: Annotated[str, Query(alias="from", max_length=50)] = "",
) -> Response:
    draft = _copy(db, source) if source else _fresh(db, _method(method), preset)
    if model:
        draft = replace(draft, values={**draft.values, "base_model": model})
    return _form(request, db, draft, {})


@router.post("/new")
def create(request: Request, posted: Posted, db: DB) -> Response:
    draft = _posted(posted)
    try:
        run = _submit(db, draft)
    except ValidationError as error:
        return _form(request, db, draft, problems_in(error, draft.method.recipe))
    except InvalidError as error:
        return _form(request, db, draft, {error.param: f"{error.message} {error.hint}".strip()})
    return go(request, f"/runs/{run.id}")


@router.post("/new/advice")
def advise(request: Request, posted: Posted) -> Response:
    """Say what is to be said of a form as it stands; nothing is written, so nobody waits."""
    draft = _posted(posted)
    with reading(request.app.state.engine) as db:
        told = preview.of(db, draft.method, draft.values)
    return block(request, "experiments/new.html", "advice", preview=told)


@router.post("/new/calibrate")
def calibrate(request: Request, posted: Posted, db: DB, config: Config) -> Response:
    """Train a few steps of the form as it stands, for its estimate to go by."""
    chore = calibrations.ask(db, _filled(db, posted), config)
    return block(request, "experiments/new.html", "calibration", chore=chore)


@router.get("/new/calibrated")
def calibrated(request: Request) -> Response:
    """Have the form ask anew: there is more to go by now."""
    return block(request, "experiments/new.html", "calibrated")


@router.post("/new/measure")
def measure(request: Request, posted: Posted, db: DB, config: Config) -> Response:
    """Go through a step of the form as it stands, for its estimate to be exact."""
    chore = measurements.ask(db, _filled(db, posted), config)
    return block(request, "experiments/new.html", "measurement", dry=chore)


@router.get("/new/measured")
def measured(request: Request) -> Response:
    """Have the form ask anew: its memory is counted now."""
    return block(request, "experiments/new.html", "measured")


@router.get("/experiments/{experiment_id}")
def show(request: Request, experiment_id: int, db: DB) -> Response:
    experiment = experiments.get(db, experiment_id)
    return page(
        request,
        "experiments/show.html",
        experiment=experiment,
        runs=runs.of_experiment(db, experiment_id),
        precisions=choices.precisions(detect()),
        recipe=yaml.dump(experiment.recipe),
        progress_of=progress.of,
    )


@router.post("/experiments/{experiment_id}")
def change(
    request: Request,
    experiment_id: int,
    db: DB,
    name: Annotated[str, Form()] = "",
    tags: Annotated[str, Form()] = "",
    notes: Annotated[str, Form()] = "",
) -> Response:
    cleaned = [tag.strip() for tag in tags.split(",") if tag.strip()]
    changes = experiments.Changes(name=name, notes=notes.strip(), tags=cleaned)
    experiments.change(db, experiment_id, changes)
    return go(request, f"/experiments/{experiment_id}")


@router.post("/experiments/{experiment_id}/runs")
def run_again(
    request: Request,
    experiment_id: int,
    db: DB,
    precision: Annotated[str, Form()] = "",
    seed: Annotated[int | None, Form()] = None,
) -> Response:
    changes: dict[str, Any] = {"precision": precision} if precision else {}
    if seed is not None:
        changes["optimisation"] = {"seed": seed}
    run = runs.submit(db, experiments.get(db, experiment_id), changes)
    return go(request, f"/runs/{run.id}")


@router.post("/experiments/{experiment_id}/delete")
def delete(request: Request, experiment_id: int, db: DB) -> Response:
    experiments.delete(db, experiment_id)
    return go(request, "/")


def _submit(db: Session, draft: Draft) -> Run:
    recipe = RECIPES.validate_python(tidy(draft.method.recipe, draft.values), strict=False)
    # All that can be refused is looked at before anything is written.
    runs.check(db, recipe)
    experiment = experiments.create(db, draft.name, recipe)
    experiment.notes = draft.notes
    return runs.submit(db, experiment)


def _filled(db: Session, posted: Mapping[str, Any]) -> AnyRecipe:
    """Return the recipe of a form that could be started as it stands."""
    draft = _posted(posted)
    try:
        recipe = RECIPES.validate_python(tidy(draft.method.recipe, draft.values), strict=False)
    except ValidationError as error:
        raise InvalidError("The form is not filled in yet.", hint="Mend it first.") from error
    runs.check(db, recipe)
    return recipe


def _posted(posted: Mapping[str, Any]) -> Draft:
    own = ("name", "notes", "preset")
    # Which row is looked at is no part of what is asked for.
    others = {*own, "look"}
    method = _method(str(posted.get("method", DEFAULT)))
    return Draft(
        method=method,
        **{field: str(posted.get(field, "")).strip() for field in own},
        values={name: value for name, value in posted.items() if name not in others},
    )


def _fresh(db: Session, method: Method, preset: str) -> Draft:
    """Begin with a preset, in a precision that can be run here: it is ready to start."""
    names = [one.name for one in method.presets]
    start = method.presets[names.index(preset) if preset in names else 0]
    last = next(iter(experiments.newest(db, limit=1)), None)
    number = (last.id or 0) + 1 if last else 1
    wanted = start.values.get("precision", method.recipe.model_fields["precision"].default)
    precision = choices.usable(choices.precisions(detect()), wanted)
    return Draft(
        method=method,
        preset=start.name,
        name=f"{start.name}-{number}",
        notes="",
        values={**start.values, "precision": precision},
    )


def _copy(db: Session, source: str) -> Draft:
    """Begin with the recipe of a run or an experiment, or with a data set: `run:12`."""
    kind, _colon, number = source.partition(":")
    if kind == "dataset" and number.isdecimal():
        fresh = _fresh(db, _method(DEFAULT), "")
        data = {"dataset": datasets.get(db, int(number)).name}
        return replace(fresh, values={**fresh.values, **data})
    find = {"run": runs.get, "experiment": experiments.get}.get(kind)
    if find is None or not number.isdecimal():
        raise NotFoundError(f"There is no {source} to start from.", hint="Write run:12.")
    found: Any = find(db, int(number))
    recipe: AnyRecipe = found.recipe
    return Draft(
        method=METHODS[recipe.method],
        preset="",
        name=found.name,
        notes="",
        values=recipe.model_dump(),
    )


def _method(name: str) -> Method:
    if name not in METHODS:
        raise NotFoundError(f"There is no method called {name}.", hint=f"Try {', '.join(METHODS)}.")
    return METHODS[name]


def _form(request: Request, db: Session, draft: Draft, problems: Problems) -> Response:
    form = fieldset(draft.method.recipe, draft.values, problems)
    return page(
        request,
        "experiments/new.html",
        status=422 if problems else 200,
        method=draft.method,
        preset=draft.preset,
        form=form,
        name={"value": draft.name, "problem": problems.get("name", "")},
        notes=draft.notes,
        problems=_listed(form, problems),
        preview=preview.of(db, draft.method, draft.values),
        sight=None,
        precisions=choices.precisions(detect()),
        choices={"dataset": choices.dataset_names(db, form.input("dataset").value)},
        suggestions={"base_model": choices.model_names(db)},
        more={"base_model": ("/models", "Models here, and on the hub")},
        ahead=len(queue.waiting(db)) + max(0, len(runs.live(db)) - workers.slots(db) + 1),
        machine=detect().title,
    )


def _listed(form: Fieldset, problems: Problems) -> Sequence[tuple[str, str, str]]:
    """Return each problem with its field's id and label, in the order of the form."""
    known = {"name": ("name", "Name")} | {
        one.name: (one.id, one.knob.label) for one in form.all_inputs()
    }
    order = [*known, *(name for name in problems if name not in known)]
    found = [name for name in order if name in problems]
    return [(*known.get(name, ("", "")), problems[name]) for name in found]
