"""Drafts: uploaded files with a detected format. Runs cannot train on a draft.

`studio.services.datasets.dataset_builds` makes its first version.
"""

from dataclasses import dataclass, field
from pathlib import Path

from sqlmodel import Session

from studio import files
from studio.db.states import DatasetStatus
from studio.db.tables import Dataset
from studio.errors import InvalidError
from studio.intake.conversion.converter import SourceFile, inspect_file
from studio.intake.conversion.job import DETECTED_MAPPING_ADAPTER, DetectionResult, detect_file
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
    """A complete file, and the options its user gave."""

    path: Path
    filename: str
    name: str = ""
    """Defaults to the file name."""
    may_rename: bool = False
    """Whether a similar name may be used if this one is taken."""
    source: str = "upload"
    """Where it came from, as shown to users."""
    validation: Path | None = None
    validation_filename: str = ""
    options: FileOptions = DETECT_ALL
    """Options for reading the file, where no mapping has them."""
    mapping: Mapping | None = None
    """How to read it; None uses the detected mapping."""
    is_draft: bool = False
    """Whether to wait until the user has confirmed the mapping."""
    limits: Limits = field(default_factory=Limits)
    sha256: str = ""
    """Checksum of the file, if the caller has computed it; otherwise the file is read again."""
    arrival: DetectionResult | None = None
    """The format, if the caller has detected it already."""


def create(db: Session, folder: Path, upload: Upload) -> Dataset:
    """Store a file and its detected format. Moves the file.

    A file in which no column is recognised is stored, too: the user can map it.

    Raises:
        ConflictError: The name is taken.
        DiskFullError: The disk is full; nothing is stored.
        InvalidError: The file cannot be read.
        SlowReadingError: Detecting its format takes too long for a request.
        TooLargeError: Reading it exceeds a limit.

    """
    with atomic_dirs.staging_dir(folder) as stage:
        dataset = build_row(upload)
        dataset.status = DatasetStatus.DRAFT
        move_files(upload, stage)
        files.sync_folder(stage)
        # The first statement takes the database's write lock: all slow work is done before it.
        dataset.name = datasets.available_name(db, dataset.name, is_chosen=bool(upload.name))
        return insert_row(db, folder, stage, dataset)


def detect(upload: Upload) -> DetectionResult:
    """Detect the format of a file, within the limits of a request."""
    source = SourceFile(path=upload.path, filename=upload.filename, options=upload.options)
    return detect_file(source, upload.limits.for_request(), upload.mapping)


def build_row(upload: Upload) -> Dataset:
    """Return the row of a file with its detected format, not stored yet."""
    filename = datasets.clean_filename(upload.filename)
    detection = upload.arrival or detect(upload)
    return Dataset(
        name=datasets.clean_name(upload.name or stem(filename)),
        filename=filename,
        format=detection.format,
        bytes=upload.path.stat().st_size,
        sha256=upload.sha256 or file_sha256(upload.path),
        detected=detection.detected,
        source=upload.source,
    )


def move_files(upload: Upload, stage: Path) -> None:
    """Move the uploaded files to the staging folder."""
    upload.path.replace(stage / f"{ORIGINAL}{full_extension(upload.filename)}")
    if upload.validation is not None:
        filename = upload.validation_filename or upload.filename
        upload.validation.replace(stage / f"{VALIDATION}{full_extension(filename)}")


def insert_row(db: Session, folder: Path, stage: Path, dataset: Dataset) -> Dataset:
    """Store a row whose name is free, and move its files into place."""
    db.add(dataset)
    db.flush()
    atomic_dirs.move_into_place(stage, folder / str(dataset.id))
    return dataset


def original_source(folder: Path, dataset: Dataset) -> SourceFile:
    """Return the file as it was uploaded.

    Raises:
        InvalidError: The dataset has no file.

    """
    path = _find_file(folder, dataset, ORIGINAL)
    if path is None:
        raise InvalidError(f"{dataset.name} is built in: it has no file to map again.")
    return SourceFile(path=path, filename=dataset.filename)


def validation_source(folder: Path, dataset: Dataset) -> SourceFile | None:
    """Return the separate validation file, if one was uploaded."""
    path = _find_file(folder, dataset, VALIDATION)
    return None if path is None else SourceFile(path=path, filename=path.name)


def load_detection(folder: Path, dataset: Dataset, limits: Limits) -> DetectedMapping:
    """Return the stored detection; for a file from an older home, detect it now.

    Raises:
        InvalidError: No column can be trained on.
        TooLargeError: Detecting it takes too long for a page.

    """
    if dataset.detected:
        return DETECTED_MAPPING_ADAPTER.validate_python(dataset.detected)
    return inspect_file(original_source(folder, dataset), limits.for_request()).detected


def _find_file(folder: Path, dataset: Dataset, name: str) -> Path | None:
    return next((folder / str(dataset.id)).glob(f"{name}.*"), None)
