"""Write the two files of a dataset, with sampling and the validation split."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from studio.errors import TooLargeError
from studio.intake.mapping import Mapping
from studio.intake.rows.deduplication import fingerprint, sample_lines
from studio.intake.rows.pipeline import Candidate, Part

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
