"""Write the folder of a run for the process that trains it, here or on another machine."""

import errno
import shutil

from sqlmodel import Session

from studio.db.tables import DatasetVersion, Run
from studio.errors import DiskFullError, InvalidError, StudioError, UnavailableError
from studio.protocols.run_dir import JobSpec, RunDir
from studio.recipe import yaml
from studio.services.datasets import versions
from studio.services.models import models, reward_models
from studio.services.runs import artifacts, continuation
from studio.settings import Settings


def write_run_dir(db: Session, run: Run, folder: RunDir, settings: Settings) -> JobSpec:
    """Write the run's folder: the recipe, and the job, with the local paths its names refer to."""
    folder.root.mkdir(parents=True, exist_ok=True)
    # If the folder was deleted, events are read from its new beginning.
    written = folder.events.path.stat().st_size if folder.events.path.exists() else 0
    run.events_offset = min(run.events_offset, written)
    folder.command.unlink(missing_ok=True)
    if not run.resumes:
        # What the run wrote before its restart does not belong to this one.
        shutil.rmtree(folder.artifacts, ignore_errors=True)
        folder.rollouts.unlink(missing_ok=True)
    train, validation = versions.row_files(settings.datasets, _dataset_version(db, run))
    spec = JobSpec(
        run_id=run.id or 0,
        name=run.name,
        **models.job_fields(db, run.recipe),
        reward_models=reward_models.judges_for(db, settings.runs, run.recipe),
        train=train,
        validation=validation,
        precision_reason=run.precision_reason,
        attempt=run.attempt,
        resume=run.resumes,
        dataset=artifacts.dataset_facts(db, run),
        adapter=continuation.copy_adapter(db, run, folder, settings.runs),
        python_graders=settings.python_graders,
        cache=settings.cache,
    )
    folder.recipe.write_text(yaml.dump(run.recipe), encoding="utf-8")
    folder.job.write_text(spec.model_dump_json(indent=2), encoding="utf-8")
    return spec


def launch_error(error: Exception) -> StudioError:
    """Return an error that explains why a run could not be launched."""
    if isinstance(error, StudioError):
        return error
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        hint = "Delete old runs or models, then try again."
        return DiskFullError("The disk is full, so the run could not be started.", hint=hint)
    reason = error.strerror if isinstance(error, OSError) else type(error).__name__
    return UnavailableError(
        f"The training process could not be started: {reason}.",
        hint="See the worker's log for details.",
    )


def _dataset_version(db: Session, run: Run) -> DatasetVersion:
    """Return the dataset version from when the run was submitted.

    Raises:
        InvalidError: its rows have been deleted.

    """
    version = versions.find_for_run(db, run)
    if version is None:
        raise InvalidError(
            f"The rows of {run.recipe.dataset} that this run trains on have been deleted.",
            hint="Start a new run with an existing dataset.",
            param="dataset",
        )
    return version
