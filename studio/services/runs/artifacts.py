"""Read what a run wrote to its folder: its log, artifacts, checkpoints and manifest.

Until the run has written its manifest, it is built from the database row.
"""

from dataclasses import dataclass
from pathlib import Path

from sqlmodel import Session

from studio import run_manifest
from studio.db.tables import Run
from studio.errors import NotFoundError
from studio.protocols.run_dir import DatasetFacts, JobSpec, RunDir
from studio.redaction import redact
from studio.run_manifest import Manifest
from studio.services.datasets import datasets, versions

TAIL_BYTES = 256 * 1024
"""How far back the last lines of a log are searched, and the most one response returns."""


@dataclass(frozen=True, slots=True)
class ArtifactFile:
    name: str
    """Path relative to the run's artifacts, with forward slashes."""
    bytes: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    name: str
    step: int
    bytes: int


@dataclass(frozen=True, slots=True)
class LogChunk:
    lines: list[str]
    next_offset: int


def list_files(folder: Path) -> list[ArtifactFile]:
    """Return the run's files, none before it has succeeded. Symbolic links are skipped."""
    if not folder.is_dir():
        return []
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink())
    return [
        ArtifactFile(path.relative_to(folder).as_posix(), path.stat().st_size) for path in files
    ]


def list_checkpoints(folder: Path) -> list[Checkpoint]:
    """Return the completely written checkpoints, newest first."""
    paths = (path for path in folder.glob("checkpoint-*") if path.name[11:].isdecimal())
    checkpoints = [
        Checkpoint(path.name, int(path.name[11:]), sum(file.bytes for file in list_files(path)))
        for path in paths
    ]
    return sorted(checkpoints, key=lambda one: -one.step)


def find_file(folder: Path, name: str) -> Path:
    """Return the path of a listed file.

    Raises:
        NotFoundError: the run has no such file. Other paths cannot be reached.

    """
    if name not in {file.name for file in list_files(folder)}:
        raise NotFoundError(
            f"This run has no file {name}.", hint="Check the run's list of artifacts."
        )
    return folder / name


def read_log(log: Path, after: int | None, limit: int) -> LogChunk:
    """Return complete lines after a byte offset, or the last lines if `after` is None."""
    if not log.exists():
        return LogChunk([], 0)
    size = log.stat().st_size
    start = max(0, size - TAIL_BYTES) if after is None else min(after, size)
    with log.open("rb") as file:
        file.seek(start)
        complete, newline, _partial = file.read(TAIL_BYTES).rpartition(b"\n")
    if after is None:
        lines = complete.split(b"\n")[-limit:] if newline else []
        return LogChunk([clean_line(line) for line in lines], start + len(complete) + len(newline))
    lines = complete.split(b"\n")[:limit] if newline else []
    return LogChunk(
        [clean_line(line) for line in lines], start + sum(len(line) + 1 for line in lines)
    )


def clean_line(line: bytes) -> str:
    """Return a line as a terminal shows it, without overwritten text, control codes or secrets."""
    text = line.decode("utf-8", "replace").rstrip("\r").rpartition("\r")[2]
    return redact("".join(char for char in text if char.isprintable() or char == "\t"))


def read_manifest(db: Session, run: Run, folder: RunDir) -> str:
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
        return JobSpec.read(folder)
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
