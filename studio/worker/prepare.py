"""The folder of a run, laid out for the process that trains it."""

import shutil

from sqlmodel import Session

from studio.db.tables import Run
from studio.recipe import yaml
from studio.rundir import JobSpec, RunDir
from studio.services import datasets, manifests, models
from studio.settings import Settings


def lay_out(db: Session, run: Run, folder: RunDir, settings: Settings) -> None:
    """Write the run's folder: the recipe, and what its names mean on this machine."""
    folder.root.mkdir(parents=True, exist_ok=True)
    folder.ask.unlink(missing_ok=True)
    if not run.resumes:
        # What a run that begins anew has saved before is not of this course.
        shutil.rmtree(folder.artifacts, ignore_errors=True)
    train, validation = datasets.files(settings.datasets, datasets.require(db, run.recipe.dataset))
    spec = JobSpec(
        run_id=run.id or 0,
        name=run.name,
        model=models.require(db, run.recipe.base_model),
        train=train,
        validation=validation,
        attempt=run.attempt,
        resume=run.resumes,
        dataset=manifests.facts_of(db, run.recipe.dataset),
        cache=settings.cache,
    )
    folder.recipe.write_text(yaml.dump(run.recipe), encoding="utf-8")
    folder.job.write_text(spec.model_dump_json(indent=2), encoding="utf-8")
