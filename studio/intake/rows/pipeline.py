"""Rows of a file on their way to being kept: chosen, made canonical, told once, given a part."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from studio.intake.detection.media import find_media
from studio.intake.mapping import Mapping
from studio.intake.problems import Code, Tally, sentence
from studio.intake.raw_rows import Row
from studio.intake.readers.text_lines import beyond
from studio.intake.row_formats.row_builder import canonical, encoded
from studio.intake.row_formats.schema import CanonicalRow, UnusableRowError
from studio.intake.row_formats.threads import Threads
from studio.intake.rows.deduplication import Seen, question
from studio.intake.rows.filters import REASONS, Choice, Part, Reason
from studio.intake.rows.sampling import is_held_back


@dataclass(frozen=True, slots=True)
class Candidate:
    """A row that can be kept."""

    number: int
    part: Part
    row: CanonicalRow
    line: bytes


@dataclass(frozen=True, slots=True)
class Refused:
    """A row that cannot be used."""

    number: int
    code: Code
    detail: str = ""

    @property
    def sentence(self) -> str:
        return sentence(self.code, self.detail)


@dataclass(frozen=True, slots=True)
class Unwanted:
    """A row that could perhaps be used, and is not to be."""

    number: int
    reason: Reason

    @property
    def sentence(self) -> str:
        return f"{REASONS[self.reason]}."


_REASONING = b'"reasoning_content": "'
"""What the line of a row has if a turn of it is thought out; a text would escape its quotes."""

Outcome = Candidate | Refused | Unwanted


@dataclass(slots=True)
class Counts:
    """What became of the rows that were not kept."""

    tally: Tally = field(default_factory=Tally)
    removed: Counter[Reason] = field(default_factory=Counter)

    def kept(self, found: Iterable[Outcome]) -> Iterator[Candidate]:
        """Yield the rows that can be kept, and count the others."""
        for one in found:
            match one:
                case Candidate():
                    if _REASONING in one.line:
                        self.tally.note(Code.REASONING)
                    yield one
                case Refused():
                    self.tally.add(one.code, one.number, one.detail)
                case Unwanted():
                    self.removed[one.reason] += 1


def candidates(rows: Iterable[Row], mapping: Mapping, row_bytes: int) -> Iterator[Outcome]:
    """Yield each row as it would be kept, or why it is left out, in the order of the file."""
    made = _threads if mapping.shape == "thread" else _single
    return _told_once(_short(made(rows, mapping), row_bytes), mapping)


def _single(rows: Iterable[Row], mapping: Mapping) -> Iterator[Outcome]:
    choice = Choice(mapping)
    for row in rows:
        refusal = _refusal(row, choice, mapping)
        if refusal is not None:
            yield refusal
            continue
        try:
            made = canonical(mapping, row.values)
            line = encoded(made)
        except UnusableRowError as error:
            yield Refused(row.number, error.code, error.detail)
        else:
            part = choice.part(row) or _part(mapping, line)
            yield Candidate(row.number, part, made, line)


def _threads(rows: Iterable[Row], mapping: Mapping) -> Iterator[Outcome]:
    choice, threads = Choice(mapping), Threads(mapping)
    parts: dict[int, Part] = {}
    for row in rows:
        refusal = _refusal(row, choice, mapping)
        if refusal is not None:
            yield refusal
            continue
        try:
            threads.add(row)
        except UnusableRowError as error:
            yield Refused(row.number, error.code, error.detail)
        named = choice.part(row)
        parts |= {row.number: named} if named else {}
    for thread in threads:
        if isinstance(thread.row, UnusableRowError):
            yield Refused(thread.number, thread.row.code, thread.row.detail)
            continue
        try:
            line = encoded(thread.row)
        except UnusableRowError as error:
            yield Refused(thread.number, error.code, error.detail)
        else:
            # Branches of one tree share its beginning: they stay on one side.
            part = parts.get(thread.number) or _part(mapping, thread.root.encode(errors="replace"))
            yield Candidate(thread.number, part, thread.row, line)


def _refusal(row: Row, choice: Choice, mapping: Mapping) -> Refused | Unwanted | None:
    """Return why a row is not read, before anything is made of it."""
    reason = choice.reason_against(row)
    if reason is not None:
        return Unwanted(row.number, reason)
    place = "" if mapping.media == "ignore" else find_media(row.values)
    if not place:
        return None
    if mapping.media == "leave_out":
        return Unwanted(row.number, "media")
    return Refused(row.number, Code.MEDIA, place)


def _part(mapping: Mapping, group: bytes) -> Part:
    split = mapping.split
    held = split.kind == "share" and is_held_back(group, split.share, mapping.seed)
    return "validation" if held else "train"


def _short(found: Iterable[Outcome], limit: int) -> Iterator[Outcome]:
    detail = beyond(limit)
    for one in found:
        too_long = isinstance(one, Candidate) and len(one.line) > limit
        yield Refused(one.number, Code.TOO_LONG, detail) if too_long else one


def _told_once(found: Iterable[Outcome], mapping: Mapping) -> Iterator[Outcome]:
    if mapping.deduplicate == "none":
        yield from found
        return
    seen = Seen()
    for one in found:
        if isinstance(one, Candidate):
            content = one.line if mapping.deduplicate == "exact" else question(one.row)
            yield one if seen.is_new(content) else Unwanted(one.number, "duplicate")
        else:
            yield one
