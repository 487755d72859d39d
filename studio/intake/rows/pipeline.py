"""The row pipeline: filter rows, convert them, drop duplicates, and write the two parts."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Literal, Self

from studio.errors import TooLargeError
from studio.intake.detection.media import find_media, find_unused_media
from studio.intake.images.row_images import BATCH_ROWS, RowImages
from studio.intake.mapping import Condition, FilterOp, Mapping
from studio.intake.problems import ProblemCode, ProblemTally, problem_message
from studio.intake.raw_rows import RawRow
from studio.intake.readers.text_rows import row_limit_text
from studio.intake.row_formats.message_formats import to_text
from studio.intake.row_formats.row_builder import build_row, encode_row
from studio.intake.row_formats.schema import CanonicalRow, UnusableRowError
from studio.intake.row_formats.threads import ThreadJoiner
from studio.intake.rows.deduplication import (
    SeenHashes,
    fingerprint,
    is_held_out,
    question_key,
    sample_lines,
)

Part = Literal["train", "validation"]

_OPERATORS: dict[FilterOp, Callable[[str, str], bool]] = {
    "is": lambda found, value: found == value,
    "is_not": lambda found, value: found != value,
    "contains": lambda found, value: value in found,
    "lacks": lambda found, value: value not in found,
    "longer_than": lambda found, value: len(found) > int(value),
    "shorter_than": lambda found, value: len(found) < int(value),
}


class RowFilter:
    """The row filters of a mapping."""

    def __init__(self, mapping: Mapping) -> None:
        self._keep = mapping.keep
        self._excluded = frozenset(mapping.exclude)
        self._kind = mapping.split.kind
        self._column = mapping.split.column
        self._parts: dict[str, Part] = {
            **{word.strip().lower(): "validation" for word in mapping.split.validation},
            **{word.strip().lower(): "train" for word in mapping.split.train},
        }

    def exclusion_reason(self, row: RawRow) -> "ExclusionReason | None":
        """Return why the row is excluded, or None."""
        if row.number in self._excluded:
            return "excluded"
        if not all(_matches(condition, row) for condition in self._keep):
            return "filtered"
        return "other_part" if self._is_in_other_part(row) else None

    def assigned_part(self, row: RawRow) -> Part | None:
        """Return the part given by the split column or the file, or None."""
        if self._kind == "file":
            return None if row.split == "aside" else row.split
        if self._kind != "column":
            return None
        return self._parts.get(to_text(row.values.get(self._column)).strip().lower())

    def _is_in_other_part(self, row: RawRow) -> bool:
        if self._kind == "dataset":
            return row.split != "train"
        return self._kind in {"file", "column"} and self.assigned_part(row) is None


ExclusionReason = Literal["excluded", "filtered", "other_part", "media", "duplicate", "not_drawn"]

EXCLUSION_REASONS: dict[ExclusionReason, str] = {
    "excluded": "Excluded by row number",
    "filtered": "Excluded by a filter",
    "other_part": "Its split is neither training nor validation",
    "media": "Contains an image, audio, video or file",
    "duplicate": "Duplicate of an earlier row",
    "not_drawn": "Not in the sample",
}
"""Why a usable row is excluded: by choice, not because of a problem."""


def _matches(condition: Condition, row: RawRow) -> bool:
    return _OPERATORS[condition.op](to_text(row.values.get(condition.column)), condition.value)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A row that can be stored."""

    number: int
    part: Part
    row: CanonicalRow
    line: bytes


@dataclass(frozen=True, slots=True)
class RefusedRow:
    """A row that cannot be used."""

    number: int
    code: ProblemCode
    detail: str = ""

    @property
    def message(self) -> str:
        return problem_message(self.code, self.detail)


@dataclass(frozen=True, slots=True)
class ExcludedRow:
    """A row excluded by choice."""

    number: int
    reason: ExclusionReason

    @property
    def message(self) -> str:
        return f"{EXCLUSION_REASONS[self.reason]}."


_REASONING_KEY = b'"reasoning_content": "'
"""Occurs in a row's line if a turn has reasoning; in text, the quotes would be escaped."""

RowOutcome = Candidate | RefusedRow | ExcludedRow


@dataclass(slots=True)
class DropCounts:
    """Counts of the rows that were not kept, by reason."""

    tally: ProblemTally = field(default_factory=ProblemTally)
    removed: Counter[ExclusionReason] = field(default_factory=Counter)

    def keep_usable(self, outcomes: Iterable[RowOutcome]) -> Iterator[Candidate]:
        """Yield the rows that can be stored, and count the others."""
        for outcome in outcomes:
            match outcome:
                case Candidate():
                    if _REASONING_KEY in outcome.line:
                        self.tally.note(ProblemCode.REASONING)
                    yield outcome
                case RefusedRow():
                    self.tally.add(outcome.code, outcome.number, outcome.detail)
                case ExcludedRow():
                    self.removed[outcome.reason] += 1


@dataclass(frozen=True, slots=True)
class _BuiltRow:
    source: RawRow
    row: CanonicalRow


def build_candidates(
    rows: Iterable[RawRow], mapping: Mapping, row_bytes: int, images: RowImages | None = None
) -> Iterator[RowOutcome]:
    """Yield each row as it would be stored, or why it is left out, in file order.

    A mapping that uses images needs `images`.
    """
    if mapping.shape == "thread":
        outcomes = _from_threads(rows, mapping)
    else:
        outcomes = _from_single_rows(rows, mapping, images)
    return _exclude_duplicates(_refuse_long_rows(outcomes, row_bytes), mapping)


def _from_single_rows(
    rows: Iterable[RawRow], mapping: Mapping, images: RowImages | None
) -> Iterator[RowOutcome]:
    row_filter = RowFilter(mapping)
    built_rows = _build_rows(rows, row_filter, mapping)
    for built in built_rows if images is None else _store_images(built_rows, images):
        if not isinstance(built, _BuiltRow):
            yield built
            continue
        number = built.source.number
        try:
            line = encode_row(built.row)
        except UnusableRowError as error:
            yield RefusedRow(number, error.code, error.detail)
        else:
            part = row_filter.assigned_part(built.source) or _assign_part(mapping, line)
            yield Candidate(number, part, built.row, line)


def _build_rows(
    rows: Iterable[RawRow], row_filter: RowFilter, mapping: Mapping
) -> Iterator[_BuiltRow | RefusedRow | ExcludedRow]:
    for row in rows:
        refusal = _refusal(row, row_filter, mapping)
        if refusal is not None:
            yield refusal
            continue
        try:
            yield _BuiltRow(row, build_row(mapping, row.values))
        except UnusableRowError as error:
            yield RefusedRow(row.number, error.code, error.detail)


def _store_images(
    outcomes: Iterator[_BuiltRow | RefusedRow | ExcludedRow], images: RowImages
) -> Iterator[_BuiltRow | RefusedRow | ExcludedRow]:
    """Store the images of rows; those with URLs are downloaded for several rows at once."""
    while batch := list(islice(outcomes, BATCH_ROWS)):
        images.download(one.row for one in batch if isinstance(one, _BuiltRow))
        for one in batch:
            if not isinstance(one, _BuiltRow):
                yield one
                continue
            try:
                yield _BuiltRow(one.source, images.store(one.row, one.source.member))
            except UnusableRowError as error:
                yield RefusedRow(one.source.number, error.code, error.detail)


def _from_threads(rows: Iterable[RawRow], mapping: Mapping) -> Iterator[RowOutcome]:
    row_filter, threads = RowFilter(mapping), ThreadJoiner(mapping)
    parts: dict[int, Part] = {}
    for row in rows:
        refusal = _refusal(row, row_filter, mapping)
        if refusal is not None:
            yield refusal
            continue
        try:
            threads.add(row)
        except UnusableRowError as error:
            yield RefusedRow(row.number, error.code, error.detail)
        assigned = row_filter.assigned_part(row)
        parts |= {row.number: assigned} if assigned else {}
    for thread in threads:
        if isinstance(thread.row, UnusableRowError):
            yield RefusedRow(thread.number, thread.row.code, thread.row.detail)
            continue
        try:
            line = encode_row(thread.row)
        except UnusableRowError as error:
            yield RefusedRow(thread.number, error.code, error.detail)
        else:
            # Branches of one tree share its start, so they stay in the same part.
            part = parts.get(thread.number) or _assign_part(
                mapping, thread.root.encode(errors="replace")
            )
            yield Candidate(thread.number, part, thread.row, line)


def _refusal(
    row: RawRow, row_filter: RowFilter, mapping: Mapping
) -> RefusedRow | ExcludedRow | None:
    """Return why a row is not converted, or None."""
    reason = row_filter.exclusion_reason(row)
    if reason is not None:
        return ExcludedRow(row.number, reason)
    place = _find_unused(row, mapping)
    if not place:
        return None
    if mapping.media == "leave_out":
        return ExcludedRow(row.number, "media")
    return RefusedRow(row.number, ProblemCode.MEDIA, place)


def _find_unused(row: RawRow, mapping: Mapping) -> str:
    """Return where a row has media that the mapping neither uses nor ignores."""
    match mapping.media:
        case "ignore":
            return ""
        case "use":
            return find_unused_media(row.values, mapping.roles.get("images", ()))
    return find_media(row.values)


def _assign_part(mapping: Mapping, group: bytes) -> Part:
    split = mapping.split
    is_validation = split.kind == "share" and is_held_out(group, split.share, mapping.seed)
    return "validation" if is_validation else "train"


def _refuse_long_rows(outcomes: Iterable[RowOutcome], limit: int) -> Iterator[RowOutcome]:
    detail = row_limit_text(limit)
    for outcome in outcomes:
        too_long = isinstance(outcome, Candidate) and len(outcome.line) > limit
        yield RefusedRow(outcome.number, ProblemCode.TOO_LONG, detail) if too_long else outcome


def _exclude_duplicates(outcomes: Iterable[RowOutcome], mapping: Mapping) -> Iterator[RowOutcome]:
    if mapping.deduplicate == "none":
        yield from outcomes
        return
    hashes = SeenHashes()
    for outcome in outcomes:
        if isinstance(outcome, Candidate):
            content = outcome.line if mapping.deduplicate == "exact" else question_key(outcome.row)
            yield outcome if hashes.add(content) else ExcludedRow(outcome.number, "duplicate")
        else:
            yield outcome


ROW_FILES: dict[Part, str] = {"train": "train.jsonl", "validation": "validation.jsonl"}
NUMBER_BYTES = 8
_PART_MARKS: dict[Part, str] = {"train": "t", "validation": "v"}
_PREFIX_CHARS = 17
"""Characters before a line in transit: its part, and its number in hexadecimal."""


@dataclass(slots=True)
class WriteCounts:
    """Counts of the rows written and not sampled."""

    train: int = 0
    validation: int = 0
    not_drawn: int = 0


def write_rows(
    candidates: Iterator[Candidate], mapping: Mapping, folder: Path, limit: int
) -> WriteCounts:
    """Write rows to the two files in `folder`; a file without rows is removed.

    Raises:
        TooLargeError: they exceed `limit` bytes.

    """
    counts = WriteCounts()
    marked = _limit_bytes(map(_mark_line, candidates), limit)
    lines = _sample(marked, mapping, folder, counts)
    _write_lines(lines, folder, counts)
    if mapping.split.kind == "share":
        if mapping.shape != "thread":
            _ensure_both_parts(folder, mapping.seed, counts)
        if not counts.train:
            _move_all_to_train(folder, counts)
    return counts


def numbers_path(path: Path) -> Path:
    """Return the file with the original number of each row, eight bytes per row."""
    return path.with_suffix(".numbers")


def _sample(
    lines: Iterator[bytes], mapping: Mapping, folder: Path, counts: WriteCounts
) -> Iterator[bytes]:
    if mapping.sample is None:
        return lines
    return sample_lines(_count_lines(lines, counts), mapping.sample, mapping.seed, folder)


def _count_lines(lines: Iterator[bytes], counts: WriteCounts) -> Iterator[bytes]:
    for line in lines:
        counts.not_drawn += 1
        yield line


def _mark_line(candidate: Candidate) -> bytes:
    return f"{_PART_MARKS[candidate.part]}{candidate.number:016x}".encode() + candidate.line


def _write_lines(lines: Iterator[bytes], folder: Path, counts: WriteCounts) -> None:
    with (
        _RowFile(folder / ROW_FILES["train"]) as train,
        _RowFile(folder / ROW_FILES["validation"]) as validation,
    ):
        for line in lines:
            output = train if line.startswith(b"t") else validation
            output.write(
                line[_PREFIX_CHARS:],
                int(line[1:_PREFIX_CHARS], 16).to_bytes(NUMBER_BYTES, "little"),
            )
    counts.train, counts.validation = train.rows, validation.rows
    counts.not_drawn = max(0, counts.not_drawn - train.rows - validation.rows)


class _RowFile:
    """A file of rows, and beside it a file with their numbers in the original."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows = 0

    def __enter__(self) -> Self:
        self.lines = self.path.open("wb")
        self.numbers = numbers_path(self.path).open("wb")
        return self

    def __exit__(self, *_: object) -> None:
        self.lines.close()
        self.numbers.close()
        if not self.rows:
            self.path.unlink()
            numbers_path(self.path).unlink()

    def write(self, line: bytes, number: bytes) -> None:
        self.rows += 1
        self.lines.write(line)
        self.numbers.write(number)


def _limit_bytes(lines: Iterator[bytes], limit: int) -> Iterator[bytes]:
    size = 0
    for line in lines:
        size += len(line) - _PREFIX_CHARS
        if size > limit:
            raise TooLargeError(
                f"The rows unpack to more than {limit / 1e9:.3g} GB.",
                hint="Split the file, or remove rows.",
                param="file",
            )
        yield line


def _ensure_both_parts(folder: Path, seed: int, counts: WriteCounts) -> None:
    """If one part is empty by chance, move the nearest row, with its duplicates, to it."""
    rows = counts.train + counts.validation
    if counts.train and not counts.validation:
        counts.validation = _move_one_row(
            folder / ROW_FILES["train"], folder / ROW_FILES["validation"], seed
        )
        counts.train = rows - counts.validation
    elif counts.validation and not counts.train:
        counts.train = _move_one_row(
            folder / ROW_FILES["validation"], folder / ROW_FILES["train"], seed
        )
        counts.validation = rows - counts.train


def _move_all_to_train(folder: Path, counts: WriteCounts) -> None:
    """Train on all rows if they cannot be split: equal rows, or one tree of threads."""
    if counts.validation:
        rows, target = folder / ROW_FILES["validation"], folder / ROW_FILES["train"]
        rows.replace(target)
        numbers_path(rows).replace(numbers_path(target))
        counts.train, counts.validation = counts.validation, 0


def _move_one_row(full: Path, empty: Path, seed: int) -> int:
    """Move one row and its duplicates to an empty file, unless all are equal; return how many."""
    nearest, farthest = _hash_extremes(full, seed)
    if nearest == farthest:
        return 0
    rest = full.with_name(f"rest-{full.name}")
    with (
        full.open("rb") as file,
        numbers_path(full).open("rb") as numbers,
        _RowFile(rest) as staying,
        _RowFile(empty) as leaving,
    ):
        for line in file:
            output = leaving if fingerprint(line, seed) == nearest else staying
            output.write(line, numbers.read(NUMBER_BYTES))
    rest.replace(full)
    numbers_path(rest).replace(numbers_path(full))
    return leaving.rows


def _hash_extremes(path: Path, seed: int) -> tuple[int, int]:
    least, most = 2**64, -1
    with path.open("rb") as file:
        for line in file:
            digest = fingerprint(line, seed)
            least, most = min(least, digest), max(most, digest)
    return least, most
