"""Convert a whole file to canonical rows: train.jsonl, and validation.jsonl if rows are held out.

Rows are streamed one by one. Whatever the file holds, only a few rows are in memory at once, plus
the hashes of earlier rows when duplicates are dropped, and threads (see `threads`).
"""

import hashlib
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from studio.errors import InvalidError, StudioError
from studio.intake.column_roles import check_mapping, is_complete
from studio.intake.conversion.first_rows import first_rows, no_rows_error, readable_rows
from studio.intake.detection.column_types import build_table
from studio.intake.detection.image_heuristics import detect_image_mapping
from studio.intake.detection.media import MediaCount, count_media, media_columns
from studio.intake.detection.name_heuristics import join_names
from studio.intake.detection.row_shapes import DetectedMapping, detect_mapping, find_unused_columns
from studio.intake.files.archives import Member, assign_splits, list_members
from studio.intake.files.format_detection import detect_format
from studio.intake.files.formats import Format
from studio.intake.files.limits import Limits, ProgressCallback, report_progress, track_path
from studio.intake.images.image_files import WebImages, open_image_files
from studio.intake.images.image_store import CheckedImages
from studio.intake.images.row_images import RowImages
from studio.intake.mapping import (
    DETECT_ALL,
    IMAGE_SHAPES,
    FileOptions,
    Mapping,
    RowKind,
    Split,
)
from studio.intake.problems import Problem, ProblemCode, ProblemTally, problem_message
from studio.intake.quality.answer_facts import AnswerFacts
from studio.intake.quality.findings import Finding
from studio.intake.raw_rows import AssignedSplit, RawRow
from studio.intake.readers import file_reader
from studio.intake.readers.option_detection import DetectedOptions, detect_options
from studio.intake.rows.pipeline import (
    ROW_FILES,
    DropCounts,
    ExclusionReason,
    WriteCounts,
    build_candidates,
    numbers_path,
    write_rows,
)
from studio.intake.rows.stored_images import ImageCounts, keep_used_images

_SHOWN_NAMES = 5


def add_archive_splits(detected: DetectedMapping, members: Sequence[Member]) -> DetectedMapping:
    """Return the detected mapping with the split that the file names give, if any."""
    splits = assign_splits(members)
    if "validation" not in splits.values():
        return detected
    evidence = [f"Used for validation, by file name: {_names_assigned_to(splits, 'validation')}."]
    if aside := _names_assigned_to(splits, "aside"):
        evidence.append(f"Left out as test data, by file name: {aside}.")
    return replace(
        detected,
        mapping=_with_file_split(detected.mapping),
        evidence=[*detected.evidence, *evidence],
        alternatives=[_with_file_split(mapping) for mapping in detected.alternatives],
    )


def _names_assigned_to(splits: dict[str, AssignedSplit], side: AssignedSplit) -> str:
    names = [name for name, split in splits.items() if split == side]
    more = [f"{len(names) - _SHOWN_NAMES} more"] if len(names) > _SHOWN_NAMES else []
    return join_names([*names[:_SHOWN_NAMES], *more])


def _with_file_split(mapping: Mapping) -> Mapping:
    return mapping.model_copy(update={"split": Split(kind="file")})


_PLAIN_TEXT_FORMATS: set[Format] = {"text", "markdown"}
"""Text without columns: something that looks like a media placeholder in it is just text."""
_MAX_UNREADABLE_SHARE = 0.1
"""If a larger share of the rows cannot be read, the detected mapping is a guess."""
_MAX_MEDIA_ROWS = 20_000
"""A file is refused as a whole if all of its first rows hold media; at most this many are
checked."""


def _ignore_progress(_share: float) -> None:
    """Ignore progress reports."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    path: Path
    filename: str
    """The user's name for it; the extension says which format it should be."""
    options: FileOptions = DETECT_ALL
    """The user's reading options, used where no mapping gives any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversionResult:
    format: Format
    mapping: Mapping
    kind: RowKind
    rows: int
    """Rows in train.jsonl."""
    validation_rows: int
    """Rows in validation.jsonl; without any, the file does not exist."""
    sha256: str
    """Hash of the rows: the same mapping of the same file gives the same hash."""
    problems: list[Problem]
    removed: dict[ExclusionReason, int]
    """Usable rows left out by choice: by filters, sampling and so on."""
    findings: list[Finding] = field(default_factory=list)
    """Possible problems in the rows, once the data checks have run."""
    answers: AnswerFacts = field(default_factory=AnswerFacts)
    """What the answers are, once the data checks have run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileInspection:
    """What the first rows of a file tell about it."""

    format: Format
    columns: list[str]
    detected: DetectedMapping


def inspect_file(
    source: SourceFile, limits: Limits, mapping: Mapping | None = None
) -> FileInspection:
    """Detect a file's format and how its rows can be used, reading only its first rows.

    `mapping` holds what the user has already chosen.

    Raises:
        InvalidError: the file cannot be used as it is, or every sampled row holds media.

    """
    kind = detect_format(source.path, source.filename)
    file = detect_options(source.path, kind, limits, mapping.file if mapping else source.options)
    unread = ProblemTally()
    first = first_rows(source.path, kind, limits, file.options, unread)
    detected = _detect_images(kind, first)
    if detected is None:
        media = _count_media(replace(source, options=file.options), kind, limits, first)
        detected = _detect_text(kind, first, media, is_allowed=_allows_media(mapping))
    detected = _lower_confidence(detected, list(unread), len(first))
    detected = _add_file_options(add_archive_splits(detected, list_members(source.path)), file)
    return FileInspection(format=kind, columns=_column_names(first), detected=detected)


def _detect_images(kind: Format, first: Sequence[RawRow]) -> DetectedMapping | None:
    """Return a mapping that uses the images of the rows, if they have some that can be used."""
    media = count_media(first)
    if not media.count or kind in _PLAIN_TEXT_FORMATS:
        return None
    return detect_image_mapping([row.values for row in first], media.count)


def _detect_text(
    kind: Format, first: Sequence[RawRow], media: MediaCount, *, is_allowed: bool
) -> DetectedMapping:
    """Return a mapping that uses the text of the rows.

    Raises:
        InvalidError: all of them hold media, and that is not allowed.

    """
    is_plain = kind in _PLAIN_TEXT_FORMATS
    if media.count == media.rows and not is_plain and not is_allowed:
        raise media.to_error()
    detected = detect_mapping(row.values for row in first)
    if media.count:
        detected = replace(
            detected,
            sureness="guess",
            questions=[media.message, *detected.questions],
            media_rows=media.count,
        )
    if not is_plain:
        return detected
    # Plain text has no column names to judge by.
    return replace(
        detected,
        mapping=detected.mapping.model_copy(update={"media": "ignore"}),
        evidence=["The file is plain text.", *detected.evidence[1:]],
    )


def _lower_confidence(
    detected: DetectedMapping, problems: Sequence[Problem], rows: int
) -> DetectedMapping:
    """Return the detected mapping with lower confidence where rows could not be read."""
    count = sum(problem.count for problem in problems)
    if not count:
        return detected
    total = count + rows
    question = f"{count:,} of {total:,} sampled rows could not be read. {problems[0].message}"
    is_guess = detected.sureness == "guess" or count > _MAX_UNREADABLE_SHARE * total
    return replace(
        detected,
        sureness="guess" if is_guess else "likely",
        questions=[question, *detected.questions],
    )


def _add_file_options(detected: DetectedMapping, file: DetectedOptions) -> DetectedMapping:
    """Return the detected mapping with the file options, and the questions they leave open."""
    options = {"file": file.options}
    sureness = detected.sureness
    if file.questions:
        sureness = "likely" if file.is_likely and sureness != "guess" else "guess"
    return replace(
        detected,
        mapping=detected.mapping.model_copy(update=options),
        alternatives=[other.model_copy(update=options) for other in detected.alternatives],
        sureness=sureness,
        questions=[*file.questions, *detected.questions],
        encodings=file.encodings,
        sheets=file.sheets,
    )


def _count_media(
    source: SourceFile, kind: Format, limits: Limits, first: Sequence[RawRow]
) -> MediaCount:
    """Count media in the first rows; if all of them hold some, count in more rows."""
    media = count_media(first)
    if media.count < media.rows or kind in _PLAIN_TEXT_FORMATS:
        return media
    rows = file_reader.read_rows(source.path, kind, limits, options=source.options)
    return count_media(islice(readable_rows(rows, ProblemTally()), _MAX_MEDIA_ROWS))


def _allows_media(mapping: Mapping | None) -> bool:
    return mapping is not None and mapping.media != "refuse"


def convert_file(
    source: SourceFile,
    mapping: Mapping | None,
    folder: Path,
    limits: Limits,
    on_progress: ProgressCallback = _ignore_progress,
    validation: SourceFile | None = None,
) -> ConversionResult:
    """Write every usable row of a file to `folder`, and report why others were left out.

    Without a mapping, one is detected from the first rows. The rows of a second file are for
    validation.

    Raises:
        InvalidError: the file as a whole, or each of its rows, cannot be used, or the mapping does
            not fit it; `param` names the field, or `validation_file`.
        TooLargeError: it unpacks to more than the limit.

    """
    resolved = _resolve_mapping(source, mapping, validation, limits)
    images = CheckedImages(folder, limits.images)
    train = _convert_part(source, resolved, folder, images, limits, on_progress)
    held_out = (
        None
        if validation is None
        else _convert_validation(validation, resolved, folder, images, limits)
    )
    image_counts = keep_used_images(folder) if resolved.media == "use" else ImageCounts()
    return ConversionResult(
        format=train.format,
        mapping=resolved,
        kind=resolved.kind,
        rows=train.written.train,
        validation_rows=held_out.written.train if held_out else train.written.validation,
        sha256=hash_rows(folder),
        problems=[
            *train.problems,
            *(held_out.problems if held_out else []),
            *_images_problem(image_counts),
        ],
        removed=train.removed,
    )


@dataclass(frozen=True, slots=True)
class _ConvertedPart:
    format: Format
    written: WriteCounts
    problems: list[Problem]
    removed: dict[ExclusionReason, int]


def _resolve_mapping(
    source: SourceFile, mapping: Mapping | None, validation: SourceFile | None, limits: Limits
) -> Mapping:
    if mapping is None:
        detected = inspect_file(source, limits).detected.mapping
        dataset_split = Split(kind="dataset")
        return (
            detected if validation is None else detected.model_copy(update={"split": dataset_split})
        )
    if (mapping.split.kind == "dataset") != (validation is not None):
        raise InvalidError(
            "The mapping expects a separate validation file, but none was given."
            if validation is None
            else "A validation file was given, but the mapping does not use one.",
            hint="Add the validation file, or choose another validation split.",
            param="split.kind",
        )
    return mapping


def _convert_part(
    source: SourceFile,
    mapping: Mapping,
    folder: Path,
    images: CheckedImages,
    limits: Limits,
    on_progress: ProgressCallback,
) -> _ConvertedPart:
    kind = detect_format(source.path, source.filename)
    first = first_rows(source.path, kind, limits, mapping.file)
    columns = _column_names(first)
    check_mapping(mapping, columns)
    media = [] if mapping.media == "ignore" else media_columns(first, columns)
    counts = DropCounts()
    path = track_path(source.path)
    needed_columns = [*mapping.columns, *media]
    uses_images = mapping.media == "use"
    raw_rows = file_reader.read_rows(
        path, kind, limits, needed_columns, mapping.file, with_images=uses_images
    )
    rows = readable_rows(report_progress(raw_rows, path, on_progress), counts.tally)
    with open_image_files(source.path, limits) as image_files:
        row_images = RowImages(image_files, WebImages(limits.images), images)
        outcomes = build_candidates(
            rows, mapping, limits.row_bytes, row_images if uses_images else None
        )
        written = write_rows(counts.keep_usable(outcomes), mapping, folder, limits.total_bytes)
    on_progress(1)
    if written.not_drawn:
        counts.removed["not_drawn"] += written.not_drawn
    problems = list(counts.tally)
    media_rows, place = counts.tally.count(ProblemCode.MEDIA)
    if media_rows and mapping.media == "refuse":
        raise MediaCount(media_rows, _count_rows(written, problems, counts), place).to_error()
    if not written.train:
        raise no_rows_error(kind, problems, counts.removed, held=written.validation)
    unused_columns = find_unused_columns(build_table(row.values for row in first), mapping)
    return _ConvertedPart(
        kind, written, [*problems, *_unused_columns_problem(unused_columns)], dict(counts.removed)
    )


def _count_rows(written: WriteCounts, problems: Sequence[Problem], counts: DropCounts) -> int:
    left_out = sum(problem.count for problem in problems) + counts.removed.total()
    return written.train + written.validation + left_out


def _convert_validation(
    source: SourceFile, mapping: Mapping, folder: Path, images: CheckedImages, limits: Limits
) -> _ConvertedPart:
    """Write the rows of a second file as the validation part.

    They are read with the first file's mapping, or with their own if their columns differ.
    """
    try:
        fitted = _fit_mapping(source, mapping, limits)
        if fitted.kind != mapping.kind:
            raise InvalidError(
                f"Validation rows are of type {fitted.kind}, but training rows are of type "
                f"{mapping.kind}.",
                hint="Use validation rows of the same type.",
            )
        overrides: dict[str, Any] = {"split": Split(), "sample": None, "exclude": []}
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            alone = fitted.model_copy(update=overrides)
            part = _convert_part(source, alone, Path(scratch), images, limits, _ignore_progress)
            rows, target = Path(scratch) / ROW_FILES["train"], folder / ROW_FILES["validation"]
            rows.replace(target)
            numbers_path(rows).replace(numbers_path(target))
    except StudioError as error:
        error.param = "validation_file"
        raise
    return replace(
        part, problems=[replace(problem, split="validation") for problem in part.problems]
    )


def _fit_mapping(source: SourceFile, mapping: Mapping, limits: Limits) -> Mapping:
    """Return the mapping without columns the file lacks, or the file's own if too few are left."""
    kind = detect_format(source.path, source.filename)
    present = set(_column_names(first_rows(source.path, kind, limits)))
    # The other file may be in another encoding.
    options = mapping.file.model_copy(update={"encoding": ""})
    roles = {
        role: [name for name in role_columns if name in present]
        for role, role_columns in mapping.roles.items()
    }
    changes = {
        "roles": roles,
        "file": options,
        "keep": [condition for condition in mapping.keep if condition.column in present],
        "values": {
            column: replacements
            for column, replacements in mapping.values.items()
            if column in present
        },
    }
    fitted = mapping.model_copy(update=changes)
    if is_complete(fitted):
        return fitted
    detected = inspect_file(source, limits).detected.mapping
    # Rows with images may be validated on rows without.
    uses_images = mapping.media == "use" and detected.shape in IMAGE_SHAPES
    return detected.model_copy(update={"media": "use"}) if uses_images else detected


def _column_names(rows: Sequence[RawRow]) -> list[str]:
    return list(build_table(row.values for row in rows).columns)


def _unused_columns_problem(columns: Sequence[str]) -> list[Problem]:
    if not columns:
        return []
    message = f"{ProblemCode.UNUSED_COLUMNS.message}: {', '.join(columns)[:500]}."
    return [Problem(code=ProblemCode.UNUSED_COLUMNS, message=message, count=len(columns), rows=[])]


def _images_problem(counts: ImageCounts) -> list[Problem]:
    if not counts.images:
        return []
    message = problem_message(ProblemCode.IMAGES, counts.text)
    return [Problem(code=ProblemCode.IMAGES, message=message, count=counts.images, rows=[])]


def hash_rows(folder: Path) -> str:
    """Return the hash of all rows: of both files' hashes, so that moving a row changes it."""
    digest = hashlib.sha256()
    for name in ROW_FILES.values():
        path = folder / name
        if path.exists():
            with path.open("rb") as file:
                digest.update(name.encode() + hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()
