"""The page of an experiment: its runs, its recipe and its parent."""

from typing import Annotated, Any

from fastapi import APIRouter, Form, Request
from fastapi.responses import PlainTextResponse, Response

from studio.recipe import yaml
from studio.services import experiments
from studio.services.estimates import run_progress
from studio.services.recipe_scripts import experiment_scripts, scripts
from studio.services.runs import recipe_parents, runs
from studio.services.workers import workers
from studio.web.experiments import recipe_changes
from studio.web.forms import choices
from studio.web.http.deps import DB
from studio.web.rendering.render import page, redirect

router = APIRouter(include_in_schema=False)


@router.get("/experiments/{experiment_id}")
def show(request: Request, experiment_id: int, db: DB) -> Response:
    experiment = experiments.get(db, experiment_id)
    parent = recipe_parents.find_or_none(db, experiment.parent)
    return page(
        request,
        "experiments/show.html",
        experiment=experiment,
        runs=runs.list_for_experiment(db, experiment_id),
        precisions=choices.precision_options(workers.training_hardware(db)),
        recipe=yaml.dump(experiment.recipe),
        no_script=scripts.unsupported_reason(experiment.recipe),
        parent=parent,
        changes=recipe_changes.recipe_changes(experiment.recipe, parent.recipe) if parent else [],
        progress_of=run_progress.measure,
    )


@router.get("/experiments/{experiment_id}/script.py")
def script(experiment_id: int, db: DB) -> Response:
    """Download the recipe as a Python script for TRL."""
    text = experiment_scripts.of_experiment(db, experiments.get(db, experiment_id))
    name = f"attachment; filename=experiment-{experiment_id}.py"
    return PlainTextResponse(
        text, media_type="text/x-python", headers={"Content-Disposition": name}
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
    tag_list = [tag.strip() for tag in tags.split(",") if tag.strip()]
    changes = experiments.ExperimentChanges(name=name, notes=notes.strip(), tags=tag_list)
    experiments.update(db, experiment_id, changes)
    return redirect(request, f"/experiments/{experiment_id}")


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
    return redirect(request, f"/runs/{run.id}")


@router.post("/experiments/{experiment_id}/delete")
def delete(request: Request, experiment_id: int, db: DB) -> Response:
    experiments.delete(db, experiment_id)
    return redirect(request, "/")
