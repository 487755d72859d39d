"""A whole file as canonical rows, one a line: train.jsonl, and validation.jsonl if some are held.

Rows go through one after the other. Whatever the file holds, what is in memory at once are a few
rows, the hashes of those seen where duplicates are dropped, and threads (see `threads`).
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
from studio.intake.conversion.head_rows import first_rows, no_rows_error, readable_rows
from studio.intake.detection.archive_splits import add_archive_splits
from studio.intake.detection.column_types import build_table
from studio.intake.detection.media import MediaCount, count_media, media_columns
from studio.intake.detection.row_shapes import DetectedMapping, detect_mapping, find_unused_columns
from studio.intake.files.archives import list_members
from studio.intake.files.format_detection import detect_format
from studio.intake.files.formats import Format
from studio.intake.files.limits import Limits
from studio.intake.files.read_progress import ProgressCallback, report_progress, track_path
from studio.intake.mapping import DETECT_ALL, FileOptions, Mapping, RowKind, Split
from studio.intake.problems import PROBLEM_MESSAGES, Problem, ProblemCode, ProblemTally
from studio.intake.quality.dataset_checks import Finding
from studio.intake.raw_rows import RawRow
from studio.intake.readers import file_reader
from studio.intake.readers.option_detection import DetectedOptions, detect_options
from studio.intake.rows.filters import ExclusionReason
from studio.intake.rows.pipeline import DropCounts, build_candidates
from studio.intake.rows.writer import ROW_FILES, WriteCounts, numbers_path, write_rows

_PLAIN_TEXT_FORMATS: set[Format] = {"text", "markdown"}
"""Text without columns: what looks like a placeholder in it is a word of the text."""
_MAX_UNREADABLE_SHARE = 0.1
"""A file with a larger share of rows that cannot be read is a guess."""
_MAX_MEDIA_ROWS = 20_000
"""A file is refused as a whole if all of its first rows hold media, so many at most."""


def _ignore_progress(_share: float) -> None:
    """Tell nobody."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    path: Path
    filename: str
    """As its owner calls it; the ending says which format it should be."""
    options: FileOptions = DETECT_ALL
    """What its owner says of how to read it, where no mapping does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversionResult:
    format: Format
    mapping: Mapping
    kind: RowKind
    rows: int
    """In train.jsonl."""
    validation_rows: int
    """In validation.jsonl, which is not there if there are none."""
    sha256: str
    """Of the rows: the same mapping of the same file gives the same."""
    problems: list[Problem]
    removed: dict[ExclusionReason, int]
    """Rows that could be used and were not wanted: by filters, sampling and the like."""
    findings: list[Finding] = field(default_factory=list)
    """What is suspicious in the rows, once they have been looked through."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileInspection:
    """What the first rows of a file say of it."""

    format: Format
    columns: list[str]
    detected: DetectedMapping


def inspect_file(
    source: SourceFile, limits: Limits, mapping: Mapping | None = None
) -> FileInspection:
    """Return what a file is and how its rows can be used, without reading much of it.

    The mapping is what its owner says of it already.

    Raises:
        InvalidError: the file cannot be used as it is, or every row looked at holds media.

    """
    kind = detect_format(source.path, source.filename)
    file = detect_options(source.path, kind, limits, mapping.file if mapping else source.options)
    unread = ProblemTally()
    first = first_rows(source.path, kind, limits, file.options, unread)
    media = _count_media(replace(source, options=file.options), kind, limits, first)
    if media.count == media.rows and kind not in _PLAIN_TEXT_FORMATS and not _allows_media(mapping):
        raise media.to_error()
    found = detect_mapping(row.values for row in first)
    if media.count:
        found = replace(
            found,
            sureness="guess",
            questions=[media.message, *found.questions],
            media_rows=media.count,
        )
    if kind in _PLAIN_TEXT_FORMATS:
        # Nobody named the only column there is.
        found = replace(
            found,
            mapping=found.mapping.model_copy(update={"media": "ignore"}),
            evidence=["The file is running text.", *found.evidence[1:]],
        )
    found = _lower_confidence(found, list(unread), len(first))
    found = _add_file_options(add_archive_splits(found, list_members(source.path)), file)
    return FileInspection(format=kind, columns=_column_names(first), detected=found)


def _lower_confidence(
    detected: DetectedMapping, problems: Sequence[Problem], rows: int
) -> DetectedMapping:
    """Return what was detected, less sure of it where rows could not be read."""
    count = sum(problem.count for problem in problems)
    if not count:
        return detected
    total = count + rows
    question = f"{count:,} of {total:,} rows looked at could not be read. {problems[0].message}"
    is_guess = detected.sureness == "guess" or count > _MAX_UNREADABLE_SHARE * total
    return replace(
        detected,
        sureness="guess" if is_guess else "likely",
        questions=[question, *detected.questions],
    )


def _add_file_options(detected: DetectedMapping, file: DetectedOptions) -> DetectedMapping:
    """Return what was detected, with how the file is read and what is not certain of that."""
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
    """Count media in the first rows; where all hold some, in more: others may follow."""
    found = count_media(first)
    if found.count < found.rows or kind in _PLAIN_TEXT_FORMATS:
        return found
    rows = file_reader.read_rows(source.path, kind, limits, options=source.options)
    return count_media(islice(readable_rows(rows, ProblemTally()), _MAX_MEDIA_ROWS))


def _allows_media(mapping: Mapping | None) -> bool:
    return mapping is not None and mapping.media != "refuse"


def convert_file(
    source: SourceFile,
    mapping: Mapping | None,
    folder: Path,
    limits: Limits,
    told: ProgressCallback = _ignore_progress,
    validation: SourceFile | None = None,
) -> ConversionResult:
    """Write every usable row of a file to `folder`, and say why others were left out.

    Without a mapping it is told from the first rows. The rows of a second file are for validation.

    Raises:
        InvalidError: the file as a whole cannot be used, or none of its rows can, or the mapping
            does not fit it; `param` names the field, or `validation_file`.
        TooLargeError: it unpacks to more than may be kept.

    """
    found = _resolve_mapping(source, mapping, validation, limits)
    train = _convert_part(source, found, folder, limits, told)
    held = None if validation is None else _convert_validation(validation, found, folder, limits)
    return ConversionResult(
        format=train.format,
        mapping=found,
        kind=found.kind,
        rows=train.written.train,
        validation_rows=held.written.train if held else train.written.validation,
        sha256=hash_rows(folder),
        problems=[*train.problems, *(held.problems if held else [])],
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
        found = inspect_file(source, limits).detected.mapping
        brought = Split(kind="dataset")
        return found if validation is None else found.model_copy(update={"split": brought})
    if (mapping.split.kind == "dataset") != (validation is not None):
        raise InvalidError(
            "The rows to validate on are said to be in another file, and there is none."
            if validation is None
            else "There is a file to validate on, and the mapping says otherwise.",
            hint="Bring the file, or choose another way to hold rows back.",
            param="split.kind",
        )
    return mapping


def _convert_part(
    source: SourceFile, mapping: Mapping, folder: Path, limits: Limits, told: ProgressCallback
) -> _ConvertedPart:
    kind = detect_format(source.path, source.filename)
    first = first_rows(source.path, kind, limits, mapping.file)
    columns = _column_names(first)
    check_mapping(mapping, columns)
    media = [] if mapping.media == "ignore" else media_columns(first, columns)
    counts = DropCounts()
    path = track_path(source.path)
    wanted = [*mapping.columns, *media]
    read = file_reader.read_rows(path, kind, limits, wanted, mapping.file)
    rows = readable_rows(report_progress(read, path, told), counts.tally)
    kept = counts.keep_usable(build_candidates(rows, mapping, limits.row_bytes))
    found = write_rows(kept, mapping, folder, limits.total_bytes)
    told(1)
    if found.not_drawn:
        counts.removed["not_drawn"] += found.not_drawn
    problems = list(counts.tally)
    held, place = counts.tally.count(ProblemCode.MEDIA)
    if held and mapping.media == "refuse":
        raise MediaCount(held, _count_rows(found, problems, counts), place).to_error()
    if not found.train:
        raise no_rows_error(kind, problems, counts.removed, held=found.validation)
    unused_columns = find_unused_columns(build_table(row.values for row in first), mapping)
    return _ConvertedPart(
        kind, found, [*problems, *_unused_columns_problem(unused_columns)], dict(counts.removed)
    )


def _count_rows(found: WriteCounts, problems: Sequence[Problem], counts: DropCounts) -> int:
    left_out = sum(one.count for one in problems) + counts.removed.total()
    return found.train + found.validation + left_out


def _convert_validation(
    source: SourceFile, mapping: Mapping, folder: Path, limits: Limits
) -> _ConvertedPart:
    """Write the rows of a second file as the validation part.

    They are read as the first file's, or as their own columns say if those are others.
    """
    try:
        own = _fit_mapping(source, mapping, limits)
        if own.kind != mapping.kind:
            raise InvalidError(
                f"The rows to validate on are of the kind {own.kind}, those to train on "
                f"{mapping.kind}.",
                hint="Bring rows of the same kind.",
            )
        whole: dict[str, Any] = {"split": Split(), "sample": None, "exclude": []}
        with tempfile.TemporaryDirectory(dir=folder) as aside:
            part = _convert_part(
                source, own.model_copy(update=whole), Path(aside), limits, _ignore_progress
            )
            rows, target = Path(aside) / ROW_FILES["train"], folder / ROW_FILES["validation"]
            rows.replace(target)
            numbers_path(rows).replace(numbers_path(target))
    except StudioError as error:
        error.param = "validation_file"
        raise
    return replace(part, problems=[replace(one, split="validation") for one in part.problems])


def _fit_mapping(source: SourceFile, mapping: Mapping, limits: Limits) -> Mapping:
    """Return the mapping without columns that a file lacks, or its own where too few are left."""
    kind = detect_format(source.path, source.filename)
    there = set(_column_names(first_rows(source.path, kind, limits)))
    # The other file may be in another encoding.
    options = mapping.file.model_copy(update={"encoding": ""})
    roles = {role: [one for one in named if one in there] for role, named in mapping.roles.items()}
    less = {
        "roles": roles,
        "file": options,
        "keep": [condition for condition in mapping.keep if condition.column in there],
        "values": {column: shown for column, shown in mapping.values.items() if column in there},
    }
    fitted = mapping.model_copy(update=less)
    return fitted if is_complete(fitted) else inspect_file(source, limits).detected.mapping


def _column_names(rows: Sequence[RawRow]) -> list[str]:
    return list(build_table(row.values for row in rows).columns)


def _unused_columns_problem(columns: Sequence[str]) -> list[Problem]:
    if not columns:
        return []
    message = f"{PROBLEM_MESSAGES[ProblemCode.UNUSED_COLUMNS]}: {', '.join(columns)[:500]}."
    return [Problem(code=ProblemCode.UNUSED_COLUMNS, message=message, count=len(columns), rows=[])]


def hash_rows(folder: Path) -> str:
    """Return the hash of all rows: of both files' hashes, so that a row may not change sides."""
    digest = hashlib.sha256()
    for name in ROW_FILES.values():
        path = folder / name
        if path.exists():
            with path.open("rb") as file:
                digest.update(name.encode() + hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()
