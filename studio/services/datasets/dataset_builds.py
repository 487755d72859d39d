"""Build dataset versions: apply a mapping to a whole file.

A small file is read at once. A large or slow one, and one with images, is read by a task, in a
process with resource limits that reports progress and can be cancelled.
"""

import shutil
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from sqlalchemy import Engine
from sqlmodel import Session, func, select

from studio import files
from studio.db.session import read_session, unit_of_work
from studio.db.states import DatasetStatus
from studio.db.tables import Dataset, DatasetVersion
from studio.db.tasks import Task
from studio.errors import ConflictError
from studio.intake.column_roles import check_mapping
from studio.intake.conversion.converter import ConversionResult, SourceFile, inspect_file
from studio.intake.conversion.file_preview import PREVIEW_IMAGES
from studio.intake.conversion.job import (
    CONVERSION_JOB_ADAPTER,
    CONVERSION_RESULT_ADAPTER,
    DETECTION_RESULT_ADAPTER,
    ConversionJob,
    check_in_child,
    detect_format_only,
)
from studio.intake.files.formats import ARCHIVE_EXTENSION, COMPRESSIONS, extension
from studio.intake.files.limits import MAX_REQUEST_BYTES, Limits, SlowReadingError
from studio.intake.mapping import Mapping, Split
from studio.services.datasets import datasets, pending_datasets, versions
from studio.services.datasets.pending_datasets import Upload
from studio.services.storage import atomic_dirs
from studio.services.tasks import tasks

KIND = "build"
_UNPACKED_FACTOR = 8
"""Assumed ratio of the size of a packed file's content to the size of the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildResult:
    """The result of a request to read a file with a mapping."""

    version: DatasetVersion | None = None
    """None while a task reads the file."""
    is_new: bool = True
    """Whether no earlier version had exactly these rows."""
    chore: Task | None = None


def import_file(db: Session, folder: Path, upload: Upload) -> Dataset:
    """Store a file and the rows that its mapping, given or detected, makes of it.

    A large or slow file, or one with images, is read later by a task: its dataset has no version
    until then.

    Raises:
        ConflictError: The name is taken.
        DiskFullError: The disk is full; nothing is stored.
        InvalidError: The file holds nothing to train on, or the mapping does not fit it.
        TooLargeError: Reading it exceeds a limit.

    """
    try:
        return _import_file(db, folder, upload)
    except SlowReadingError:
        return _import_undetected_file(db, folder, upload)


def _import_file(db: Session, folder: Path, upload: Upload) -> Dataset:
    if upload.arrival is None:
        check_in_child(_upload_reading(upload))
    if upload.is_draft:
        return pending_datasets.create(db, folder, upload)
    upload = replace(upload, arrival=upload.arrival or pending_datasets.detect(upload))
    if _is_large_upload(upload) or _uses_images(upload):
        return _import_large_file(db, folder, upload)
    with atomic_dirs.staging_dir(folder) as stage:
        dataset = pending_datasets.build_row(upload)
        first = stage / "1"
        first.mkdir()
        conversion = _interactive_reading(_upload_reading(upload)).write_rows(first)
        pending_datasets.move_files(upload, stage)
        files.sync_folder(first)
        files.sync_folder(stage)
        # The first statement takes the database's write lock: all slow work is done before it.
        dataset.name = datasets.available_name(db, dataset.name, is_chosen=not upload.may_rename)
        pending_datasets.insert_row(db, folder, stage, dataset)
        _insert_version(db, dataset, conversion)
    return dataset


def rebuild(
    engine: Engine, folder: Path, dataset_id: int, mapping: Mapping, limits: Limits
) -> BuildResult:
    """Read a dataset's file with another mapping, and make the result the current version.

    No database session stays open while the file is read.

    Raises:
        ConflictError: The file is large, and is being read already.
        InvalidError: The mapping does not fit the file, or leaves no rows.
        NotFoundError: There is no such dataset.

    """
    with read_session(engine) as db:
        dataset = datasets.get(db, dataset_id)
        job = _stored_reading(db, folder, dataset, mapping, limits)
    home = folder / str(dataset_id)
    if is_large(dataset.bytes, dataset.filename) or mapping.media == "use":
        with suppress(SlowReadingError):
            check_mapping(mapping, inspect_file(job.source, limits.for_request(), mapping).columns)
        return _enqueue_rebuild(engine, home, job)
    try:
        check_in_child(job)
        with atomic_dirs.staging_dir(home) as stage:
            conversion = _interactive_reading(job).write_rows(stage)
            files.sync_folder(stage)
            with unit_of_work(engine) as db:
                return save_version(db, home, stage, conversion)
    except SlowReadingError:
        return _enqueue_rebuild(engine, home, job)


def replace_file(engine: Engine, folder: Path, dataset_id: int, upload: Upload) -> BuildResult:
    """Replace a dataset's file by a newer one, and make its rows the current version.

    Earlier versions keep their rows. No database session stays open while the file is read.

    Raises:
        ConflictError: The file of the dataset is being read.
        InvalidError: The mapping does not fit the file, or leaves no rows.
        NotFoundError: There is no such dataset.

    """
    home = folder / str(dataset_id)
    with read_session(engine) as db:
        dataset = datasets.get(db, dataset_id)
        mapping = upload.mapping or versions.current_mapping(db, dataset_id)
        stored = _stored_reading(db, folder, dataset, mapping, upload.limits)
    if _is_large_upload(upload) or mapping.media == "use":
        return _enqueue_replacement(engine, home, upload, stored)
    source = SourceFile(path=upload.path, filename=upload.filename, options=upload.options)
    try:
        with atomic_dirs.staging_dir(home) as stage:
            conversion = _interactive_reading(replace(stored, source=source)).write_rows(stage)
            files.sync_folder(stage)
            with unit_of_work(engine) as db:
                _swap_file(db, folder, dataset_id, upload)
                return save_version(db, home, stage, conversion)
    except SlowReadingError:
        return _enqueue_replacement(engine, home, upload, stored)


def _enqueue_replacement(
    engine: Engine, home: Path, upload: Upload, job: ConversionJob
) -> BuildResult:
    with unit_of_work(engine) as db:
        dataset = _swap_file(db, home.parent, int(home.name), upload)
        return BuildResult(chore=_enqueue_reading(db, dataset, home, job))


def _swap_file(db: Session, folder: Path, dataset_id: int, upload: Upload) -> Dataset:
    """Put an uploaded file in the place of a dataset's own, unless that is being read."""
    dataset = datasets.get(db, dataset_id)
    before = latest_task(db, dataset_id)
    if before is not None and not before.status.is_final:
        raise ConflictError(
            f"{dataset.name} is already being read.", hint="Wait until it is done, or cancel it."
        )
    built = pending_datasets.build_row(upload)
    dataset.bytes, dataset.sha256, dataset.detected = built.bytes, built.sha256, built.detected
    target = pending_datasets.original_source(folder, dataset).path
    upload.path.replace(target)
    files.sync(target.parent)
    shutil.rmtree(target.parent / PREVIEW_IMAGES, ignore_errors=True)
    return dataset


def save_version(db: Session, home: Path, stage: Path, conversion: ConversionResult) -> BuildResult:
    """Make staged rows the current version: a new one, unless a version has the same rows."""
    dataset = datasets.get(db, int(home.name))
    query = select(DatasetVersion).where(
        DatasetVersion.dataset_id == dataset.id, DatasetVersion.sha256 == conversion.sha256
    )
    same = db.exec(query).first()
    if same is not None:
        return BuildResult(
            version=versions.activate(db, same.dataset_id, same.number), is_new=False
        )
    version = _insert_version(db, dataset, conversion)
    atomic_dirs.move_into_place(stage, home / str(version.number))
    shutil.rmtree(home / PREVIEW_IMAGES, ignore_errors=True)
    return BuildResult(version=version)


def is_large(size: int, filename: str) -> bool:
    """Return whether a task reads a file. Packed files count as 8 times their size."""
    is_packed = extension(filename) in {*COMPRESSIONS, ARCHIVE_EXTENSION}
    return size * (_UNPACKED_FACTOR if is_packed else 1) > MAX_REQUEST_BYTES


def _is_large_upload(upload: Upload) -> bool:
    validation = upload.validation
    return is_large(upload.path.stat().st_size, upload.filename) or (
        validation is not None
        and is_large(validation.stat().st_size, upload.validation_filename or upload.filename)
    )


def _uses_images(upload: Upload) -> bool:
    """Whether images must be decoded, which this process does not do."""
    if upload.mapping is not None:
        return upload.mapping.media == "use"
    detected = upload.arrival.detected if upload.arrival else {}
    return bool(detected.get("mapping", {}).get("media") == "use")


def latest_task(db: Session, dataset_id: int) -> Task | None:
    """Return the newest task that reads, or has read, a dataset's file."""
    return tasks.latest(db, KIND, _task_subject(dataset_id))


def enqueue(db: Session, folder: Path, dataset_id: int, mapping: Mapping, limits: Limits) -> Task:
    """Queue a task that reads a dataset's file with another mapping, whatever its size.

    Raises:
        ConflictError: The file is being read already.
        InvalidError: The dataset has no file.

    """
    dataset = datasets.get(db, dataset_id)
    job = _stored_reading(db, folder, dataset, mapping, limits)
    return _enqueue_reading(db, dataset, folder / str(dataset_id), job)


def on_task_end(db: Session, task: Task, result: dict[str, Any]) -> None:
    """Store the detected format and the rows of a finished task, or mark the failure."""
    home = Path(task.params["home"])
    dataset = db.get(Dataset, int(home.name))
    if dataset is None:
        return
    if "arrival" in result:
        detection = DETECTION_RESULT_ADAPTER.validate_python(result["arrival"])
        dataset.detected, dataset.status = detection.detected, DatasetStatus.DRAFT
    if "rows" in result:
        save_version(
            db,
            home,
            Path(result["rows"]),
            CONVERSION_RESULT_ADAPTER.validate_python(result["converted"]),
        )
    elif dataset.version is None and not result:
        dataset.status = DatasetStatus.FAILED


def _import_large_file(db: Session, folder: Path, upload: Upload) -> Dataset:
    source = SourceFile(path=upload.path, filename=upload.filename, options=upload.options)
    detection = inspect_file(source, upload.limits.for_request(), upload.mapping)
    if upload.mapping is not None:
        check_mapping(upload.mapping, detection.columns)
    dataset = pending_datasets.create(db, folder, upload)
    split = Split(kind="dataset") if upload.validation else detection.detected.mapping.split
    mapping = upload.mapping or detection.detected.mapping.model_copy(update={"split": split})
    job = _stored_reading(db, folder, dataset, mapping, upload.limits)
    _enqueue_reading(db, dataset, folder / str(dataset.id), job)
    return dataset


def _import_undetected_file(db: Session, folder: Path, upload: Upload) -> Dataset:
    """Store a file and queue a task that detects its format and, unless a draft, reads it."""
    source = SourceFile(path=upload.path, filename=upload.filename)
    dataset = pending_datasets.create(
        db, folder, replace(upload, arrival=detect_format_only(source))
    )
    job = ConversionJob(
        source=replace(pending_datasets.original_source(folder, dataset), options=upload.options),
        mapping=upload.mapping,
        limits=upload.limits,
        validation=pending_datasets.validation_source(folder, dataset),
    )
    work = {"look": True, "write": not upload.is_draft}
    _enqueue_reading(db, dataset, folder / str(dataset.id), job, work)
    return dataset


def _interactive_reading(job: ConversionJob) -> ConversionJob:
    """Return the job with the limits of an interactive request."""
    return replace(job, limits=job.limits.for_request())


def _enqueue_rebuild(engine: Engine, home: Path, job: ConversionJob) -> BuildResult:
    with unit_of_work(engine) as db:
        return BuildResult(chore=_enqueue_reading(db, datasets.get(db, int(home.name)), home, job))


def _enqueue_reading(
    db: Session,
    dataset: Dataset,
    home: Path,
    job: ConversionJob,
    work: dict[str, bool] | None = None,
) -> Task:
    """Queue a task for a job; `work` says whether it detects the format and writes rows."""
    # `tasks.enqueue` would return a queued task unchanged, and that one has another mapping.
    before = latest_task(db, dataset.id or 0)
    if before is not None and not before.status.is_final:
        raise ConflictError(
            f"{dataset.name} is already being read.", hint="Wait until it is done, or cancel it."
        )
    if dataset.version is None:
        dataset.status = DatasetStatus.BUILDING
    reading = CONVERSION_JOB_ADAPTER.dump_python(job, mode="json")
    params = {"home": str(home), "reading": reading} | (work or {})
    return tasks.enqueue(db, KIND, _task_subject(dataset.id or 0), params)


def _task_subject(dataset_id: int) -> str:
    return f"dataset:{dataset_id}"


def _upload_reading(upload: Upload) -> ConversionJob:
    filename = upload.validation_filename or upload.filename
    return ConversionJob(
        source=SourceFile(path=upload.path, filename=upload.filename, options=upload.options),
        mapping=upload.mapping,
        limits=upload.limits,
        validation=SourceFile(path=upload.validation, filename=filename)
        if upload.validation
        else None,
    )


def _stored_reading(
    db: Session, folder: Path, dataset: Dataset, mapping: Mapping, limits: Limits
) -> ConversionJob:
    """Return the job for a stored file; its validation rows may come from another dataset."""
    split, validation = mapping.split, None
    if split.kind == "dataset" and split.dataset:
        version = versions.require(db, split.dataset)
        path, _validation = versions.row_files(folder, version)
        validation = SourceFile(path=path, filename=path.name)
    elif split.kind == "dataset":
        validation = pending_datasets.validation_source(folder, dataset)
    source = pending_datasets.original_source(folder, dataset)
    return ConversionJob(source=source, mapping=mapping, limits=limits, validation=validation)


def _insert_version(db: Session, dataset: Dataset, conversion: ConversionResult) -> DatasetVersion:
    newest = select(func.max(DatasetVersion.number)).where(DatasetVersion.dataset_id == dataset.id)
    version = DatasetVersion(
        dataset_id=dataset.id or 0,
        number=(db.exec(newest).one() or 0) + 1,
        kind=conversion.kind,
        mapping=conversion.mapping.model_dump(mode="json"),
        sha256=conversion.sha256,
        train_rows=conversion.rows,
        validation_rows=conversion.validation_rows,
        problems=[asdict(entry) | {"blocking": False} for entry in conversion.problems],
        removed={str(reason): rows for reason, rows in conversion.removed.items()},
        findings=[asdict(entry) for entry in conversion.findings],
        answers=asdict(conversion.answers),
    )
    db.add(version)
    db.flush()
    dataset.version, dataset.status = version.number, DatasetStatus.READY
    return version
