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
from studio.intake.column_roles import check, says_enough
from studio.intake.conversion.head_rows import first_rows, nothing_left, readable
from studio.intake.detection.archive_splits import with_sides
from studio.intake.detection.column_types import table
from studio.intake.detection.media import MediaCount, columns_with_media, count_media
from studio.intake.detection.row_shapes import Detected, detect, unused
from studio.intake.files.archives import members
from studio.intake.files.format_detection import recognise
from studio.intake.files.formats import Format
from studio.intake.files.limits import Limits
from studio.intake.files.read_progress import Told, followed, followed_rows
from studio.intake.mapping import DETECT, FileOptions, Kind, Mapping, Split
from studio.intake.problems import SENTENCES, Code, Problem, Tally
from studio.intake.quality.dataset_checks import Finding
from studio.intake.raw_rows import Row
from studio.intake.readers import file_reader
from studio.intake.readers.option_detection import DetectedFile, detect_file
from studio.intake.rows.filters import Reason
from studio.intake.rows.pipeline import Counts, candidates
from studio.intake.rows.writer import FILES, Written, numbers_of, written

_RUNNING: set[Format] = {"text", "markdown"}
"""Text without columns: what looks like a placeholder in it is a word of the text."""
_FEW_UNREAD = 0.1
"""A file with a larger share of rows that cannot be read is a guess."""
_MEDIA_ROWS = 20_000
"""A file is refused as a whole if all of its first rows hold media, so many at most."""


def _silent(_share: float) -> None:
    """Tell nobody."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    path: Path
    filename: str
    """As its owner calls it; the ending says which format it should be."""
    options: FileOptions = DETECT
    """What its owner says of how to read it, where no mapping does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Converted:
    format: Format
    mapping: Mapping
    kind: Kind
    rows: int
    """In train.jsonl."""
    validation_rows: int
    """In validation.jsonl, which is not there if there are none."""
    sha256: str
    """Of the rows: the same mapping of the same file gives the same."""
    problems: list[Problem]
    removed: dict[Reason, int]
    """Rows that could be used and were not wanted: by filters, sampling and the like."""
    findings: list[Finding] = field(default_factory=list)
    """What is suspicious in the rows, once they have been looked through."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """What the first rows of a file say of it."""

    format: Format
    columns: list[str]
    detected: Detected


def look(source: Source, limits: Limits, mapping: Mapping | None = None) -> Looked:
    """Return what a file is and how its rows can be used, without reading much of it.

    The mapping is what its owner says of it already.

    Raises:
        InvalidError: the file cannot be used as it is, or every row looked at holds media.

    """
    kind = recognise(source.path, source.filename)
    file = detect_file(source.path, kind, limits, mapping.file if mapping else source.options)
    unread = Tally()
    first = first_rows(source.path, kind, limits, file.options, unread)
    media = _counted_media(replace(source, options=file.options), kind, limits, first)
    if media.count == media.rows and kind not in _RUNNING and not _takes_media(mapping):
        raise media.refusal()
    found = detect(row.values for row in first)
    if media.count:
        found = replace(
            found,
            sureness="guess",
            questions=[media.sentence, *found.questions],
            media_rows=media.count,
        )
    if kind in _RUNNING:
        # Nobody named the only column there is.
        found = replace(
            found,
            mapping=found.mapping.model_copy(update={"media": "ignore"}),
            evidence=["The file is running text.", *found.evidence[1:]],
        )
    found = _with_unread(found, list(unread), len(first))
    found = _with_file(with_sides(found, members(source.path)), file)
    return Looked(format=kind, columns=_columns(first), detected=found)


def _with_unread(detected: Detected, problems: Sequence[Problem], rows: int) -> Detected:
    """Return what was detected, less sure of it where rows could not be read."""
    count = sum(problem.count for problem in problems)
    if not count:
        return detected
    total = count + rows
    question = f"{count:,} of {total:,} rows looked at could not be read. {problems[0].message}"
    is_guess = detected.sureness == "guess" or count > _FEW_UNREAD * total
    return replace(
        detected,
        sureness="guess" if is_guess else "likely",
        questions=[question, *detected.questions],
    )


def _with_file(detected: Detected, file: DetectedFile) -> Detected:
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


def _counted_media(
    source: Source, kind: Format, limits: Limits, first: Sequence[Row]
) -> MediaCount:
    """Count media in the first rows; where all hold some, in more: others may follow."""
    found = count_media(first)
    if found.count < found.rows or kind in _RUNNING:
        return found
    rows = file_reader.rows(source.path, kind, limits, options=source.options)
    return count_media(islice(readable(rows, Tally()), _MEDIA_ROWS))


def _takes_media(mapping: Mapping | None) -> bool:
    return mapping is not None and mapping.media != "refuse"


def convert(
    source: Source,
    mapping: Mapping | None,
    folder: Path,
    limits: Limits,
    told: Told = _silent,
    validation: Source | None = None,
) -> Converted:
    """Write every usable row of a file to `folder`, and say why others were left out.

    Without a mapping it is told from the first rows. The rows of a second file are for validation.

    Raises:
        InvalidError: the file as a whole cannot be used, or none of its rows can, or the mapping
            does not fit it; `param` names the field, or `validation_file`.
        TooLargeError: it unpacks to more than may be kept.

    """
    found = _mapping(source, mapping, validation, limits)
    train = _converted(source, found, folder, limits, told)
    held = None if validation is None else _held(validation, found, folder, limits)
    return Converted(
        format=train.format,
        mapping=found,
        kind=found.kind,
        rows=train.written.train,
        validation_rows=held.written.train if held else train.written.validation,
        sha256=rows_hash(folder),
        problems=[*train.problems, *(held.problems if held else [])],
        removed=train.removed,
    )


@dataclass(frozen=True, slots=True)
class _Part:
    format: Format
    written: Written
    problems: list[Problem]
    removed: dict[Reason, int]


def _mapping(
    source: Source, mapping: Mapping | None, validation: Source | None, limits: Limits
) -> Mapping:
    if mapping is None:
        found = look(source, limits).detected.mapping
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


def _converted(source: Source, mapping: Mapping, folder: Path, limits: Limits, told: Told) -> _Part:
    kind = recognise(source.path, source.filename)
    first = first_rows(source.path, kind, limits, mapping.file)
    columns = _columns(first)
    check(mapping, columns)
    media = [] if mapping.media == "ignore" else columns_with_media(first, columns)
    counts = Counts()
    path = followed(source.path)
    wanted = [*mapping.columns, *media]
    read = file_reader.rows(path, kind, limits, wanted, mapping.file)
    rows = readable(followed_rows(read, path, told), counts.tally)
    kept = counts.kept(candidates(rows, mapping, limits.row_bytes))
    found = written(kept, mapping, folder, limits.total_bytes)
    told(1)
    if found.not_drawn:
        counts.removed["not_drawn"] += found.not_drawn
    problems = list(counts.tally)
    held, place = counts.tally.count(Code.MEDIA)
    if held and mapping.media == "refuse":
        raise MediaCount(held, _total(found, problems, counts), place).refusal()
    if not found.train:
        raise nothing_left(kind, problems, counts.removed, held=found.validation)
    unused_columns = unused(table(row.values for row in first), mapping)
    return _Part(kind, found, [*problems, *_unused(unused_columns)], dict(counts.removed))


def _total(found: Written, problems: Sequence[Problem], counts: Counts) -> int:
    left_out = sum(one.count for one in problems) + counts.removed.total()
    return found.train + found.validation + left_out


def _held(source: Source, mapping: Mapping, folder: Path, limits: Limits) -> _Part:
    """Write the rows of a second file as the validation part.

    They are read as the first file's, or as their own columns say if those are others.
    """
    try:
        own = _fitted(source, mapping, limits)
        if own.kind != mapping.kind:
            raise InvalidError(
                f"The rows to validate on are of the kind {own.kind}, those to train on "
                f"{mapping.kind}.",
                hint="Bring rows of the same kind.",
            )
        whole: dict[str, Any] = {"split": Split(), "sample": None, "exclude": []}
        with tempfile.TemporaryDirectory(dir=folder) as aside:
            part = _converted(source, own.model_copy(update=whole), Path(aside), limits, _silent)
            rows, target = Path(aside) / FILES["train"], folder / FILES["validation"]
            rows.replace(target)
            numbers_of(rows).replace(numbers_of(target))
    except StudioError as error:
        error.param = "validation_file"
        raise
    return replace(part, problems=[replace(one, split="validation") for one in part.problems])


def _fitted(source: Source, mapping: Mapping, limits: Limits) -> Mapping:
    """Return the mapping without columns that a file lacks, or its own where too few are left."""
    kind = recognise(source.path, source.filename)
    there = set(_columns(first_rows(source.path, kind, limits)))
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
    return fitted if says_enough(fitted) else look(source, limits).detected.mapping


def _columns(rows: Sequence[Row]) -> list[str]:
    return list(table(row.values for row in rows).columns)


def _unused(columns: Sequence[str]) -> list[Problem]:
    if not columns:
        return []
    message = f"{SENTENCES[Code.UNUSED_COLUMNS]}: {', '.join(columns)[:500]}."
    return [Problem(code=Code.UNUSED_COLUMNS, message=message, count=len(columns), rows=[])]


def rows_hash(folder: Path) -> str:
    """Return the hash of all rows: of both files' hashes, so that a row may not change sides."""
    digest = hashlib.sha256()
    for name in FILES.values():
        path = folder / name
        if path.exists():
            with path.open("rb") as file:
                digest.update(name.encode() + hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()
