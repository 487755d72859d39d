"""Drafts: a file that was brought, and what was seen in it. Nothing can be learnt from one yet.

`studio.services.datasets.dataset_builds` makes its first version.
"""

from dataclasses import dataclass, field
from pathlib import Path

from sqlmodel import Session

from studio.db.states import DatasetStatus
from studio.db.tables import Dataset
from studio.errors import InvalidError
from studio.intake.conversion.converter import SourceFile, inspect_file
from studio.intake.conversion.detection_result import (
    DETECTED_MAPPING_ADAPTER,
    DetectionResult,
    detect_file,
)
from studio.intake.detection.row_shapes import DetectedMapping
from studio.intake.files.formats import full_extension, stem
from studio.intake.files.limits import Limits
from studio.intake.mapping import DETECT_ALL, FileOptions, Mapping
from studio.run_manifest import file_sha256
from studio.services.datasets import datasets
from studio.services.storage import atomic_dirs

ORIGINAL, VALIDATION = "original", "validation-original"


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """A file that has arrived whole, and what its owner says of it."""

    path: Path
    filename: str
    name: str = ""
    """Nothing means: as the file is called."""
    may_rename: bool = False
    """Whether a name like it will do where its own is taken."""
    source: str = "upload"
    """Where it came from, in words."""
    validation: Path | None = None
    validation_filename: str = ""
    options: FileOptions = DETECT_ALL
    """What its owner says of how to read the file, where no mapping does."""
    mapping: Mapping | None = None
    """How to read it; None leaves that to what is seen in it."""
    is_draft: bool = False
    """Whether to wait until a person has said how to read it."""
    limits: Limits = field(default_factory=Limits)
    sha256: str = ""
    """Of the file, from whoever has seen all of it pass; without it, all is read again."""
    arrival: DetectionResult | None = None
    """What whoever brought it has seen in it already."""


def create(db: Session, folder: Path, upload: Upload) -> Dataset:
    """Keep a file and what was seen in it. The file is taken away from its place.

    A file in which no column is recognised is kept all the same: a person may know better.

    Raises:
        ConflictError: the name is taken.
        DiskFullError: there is no room for it; nothing is kept.
        InvalidError: this is no file that can be read.
        SlowReadingError: looking at it takes longer than an answer may.
        TooLargeError: it costs more than any file may.

    """
    with atomic_dirs.staging_dir(folder) as stage:
        dataset = build_row(upload)
        dataset.status = DatasetStatus.DRAFT
        move_files(upload, stage)
        atomic_dirs.sync_dir(stage)
        # The first statement takes the database's write lock: all slow work is done by now.
        dataset.name = datasets.available_name(db, dataset.name, is_chosen=bool(upload.name))
        return insert_row(db, folder, stage, dataset)


def build_row(upload: Upload) -> Dataset:
    """Return the row of a file with what was seen in it, not stored yet."""
    filename = datasets.clean_filename(upload.filename)
    brought = SourceFile(path=upload.path, filename=upload.filename, options=upload.options)
    found = upload.arrival or detect_file(brought, upload.limits.for_request(), upload.mapping)
    return Dataset(
        name=datasets.clean_name(upload.name or stem(filename)),
        filename=filename,
        format=found.format,
        bytes=upload.path.stat().st_size,
        sha256=upload.sha256 or file_sha256(upload.path),
        detected=found.detected,
        source=upload.source,
    )


def move_files(upload: Upload, stage: Path) -> None:
    """Move what was brought to where it stays."""
    upload.path.replace(stage / f"{ORIGINAL}{full_extension(upload.filename)}")
    if upload.validation is not None:
        named = upload.validation_filename or upload.filename
        upload.validation.replace(stage / f"{VALIDATION}{full_extension(named)}")


def insert_row(db: Session, folder: Path, stage: Path, dataset: Dataset) -> Dataset:
    """Store a row whose name is free, and move its files to their place."""
    db.add(dataset)
    db.flush()
    atomic_dirs.move_into_place(stage, folder / str(dataset.id))
    return dataset


def original_source(folder: Path, dataset: Dataset) -> SourceFile:
    """Return the file as it was brought.

    Raises:
        InvalidError: the data set came without one.

    """
    found = _find_file(folder, dataset, ORIGINAL)
    if found is None:
        raise InvalidError(
            f"{dataset.name} was made by the studio: there is no file to read in another way."
        )
    return SourceFile(path=found, filename=dataset.filename)


def validation_source(folder: Path, dataset: Dataset) -> SourceFile | None:
    """Return the file that was brought to measure progress by, if one was."""
    found = _find_file(folder, dataset, VALIDATION)
    return None if found is None else SourceFile(path=found, filename=found.name)


def load_detection(folder: Path, dataset: Dataset, limits: Limits) -> DetectedMapping:
    """Return what was seen in a file; of one from an older home, what is seen in it now.

    Raises:
        InvalidError: no column can be learnt from.
        TooLargeError: seeing it takes longer than a page may.

    """
    if dataset.detected:
        return DETECTED_MAPPING_ADAPTER.validate_python(dataset.detected)
    return inspect_file(original_source(folder, dataset), limits.for_request()).detected


def _find_file(folder: Path, dataset: Dataset, name: str) -> Path | None:
    return next((folder / str(dataset.id)).glob(f"{name}.*"), None)
