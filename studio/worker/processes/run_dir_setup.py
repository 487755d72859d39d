"""Prepare a launch on this machine: the folder of a run, and its secrets."""

from dataclasses import replace
from pathlib import Path

from sqlmodel import Session

from studio.db.tables import Run
from studio.methods import AnyRecipe
from studio.protocols import grader_judges
from studio.services.accounts import secrets
from studio.services.runs.run_dirs import launch_error as launch_error  # noqa: PLC0414 -- one door
from studio.services.runs.run_dirs import write_run_dir as write_run_dir  # noqa: PLC0414 -- one door
from studio.settings import Settings
from studio.worker.processes import process
from studio.worker.processes.launcher import LaunchSpec


def prepare_launch(db: Session, run: Run, spec: LaunchSpec, settings: Settings) -> LaunchSpec:
    """Write the run's folder, and add to the launch the secrets that the run needs.

    These are what downloads a hub model, and the keys of models that graders ask.

    Raises:
        StudioError: something the recipe names is gone, or the secret cannot be read.

    """
    job = write_run_dir(db, run, spec.folder, settings)
    keys = _grader_keys(db, run.recipe, settings)
    if all(Path(name).is_absolute() for name in (job.model, job.teacher) if name):
        return replace(spec, secrets=keys) if keys else spec
    # The trainer downloads the model from the hub itself, with the libraries' own client.
    token = secrets.settings_with_required(db, settings, ["hub_token"]).secret_value("hub_token")
    secret = {"HF_TOKEN": token} if token else {}
    return replace(spec, secrets=process.hub_environment(settings) | secret | keys)


def _grader_keys(db: Session, recipe: AnyRecipe, settings: Settings) -> dict[str, str]:
    if not recipe.asks_endpoints:
        return {}
    names = grader_judges.SECRETS
    return secrets.settings_with_required(db, settings, names).secret_environment(names)
