"""The manifest of a run, built from its database row until the run has written its own."""

from sqlmodel import Session

from studio import run_manifest
from studio.db.tables import Run
from studio.protocols.run_dir import DatasetFacts, JobSpec, RunDir
from studio.run_manifest import Manifest
from studio.services.datasets import datasets, versions


def read_json(db: Session, run: Run, folder: RunDir) -> str:
    """Return a run's manifest as JSON, exactly as the run wrote it if it has."""
    if folder.manifest.is_file():
        return folder.manifest.read_text(encoding="utf-8")
    return build_manifest(db, run, folder).model_dump_json(indent=2)


def build_manifest(db: Session, run: Run, folder: RunDir) -> Manifest:
    """Build the manifest of a run that has not written its own."""
    recipe = run.recipe.model_dump(mode="json")
    return run_manifest.build_manifest(
        _job_spec(db, run, folder), recipe, run.resolved, run.metrics
    )


def _job_spec(db: Session, run: Run, folder: RunDir) -> JobSpec:
    """Return how the run was, or would be, launched."""
    if folder.job.is_file():
        return JobSpec.model_validate_json(folder.job.read_text(encoding="utf-8"))
    return JobSpec(
        run_id=run.id or 0,
        name=run.name,
        precision_reason=run.precision_reason,
        attempt=run.attempt,
        model=run.recipe.base_model,
        train=folder.root,
        validation=None,
        dataset=dataset_facts(db, run),
    )


def dataset_facts(db: Session, run: Run) -> DatasetFacts | None:
    """Return what identifies the rows of a run, or None if they have been deleted."""
    version = versions.find_for_run(db, run)
    if version is None:
        return None
    dataset = datasets.get(db, version.dataset_id)
    return DatasetFacts(
        name=dataset.name,
        sha256=dataset.sha256,
        version=version.number,
        rows_sha256=version.sha256,
        mapping=version.mapping,
        train_rows=version.train_rows,
        validation_rows=version.validation_rows,
    )
