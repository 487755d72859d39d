"""Read the first rows of a file, and explain why none of its rows can be used."""

from collections.abc import Iterator, Sequence
from collections.abc import Mapping as Values
from itertools import islice
from pathlib import Path

from studio.errors import InvalidError
from studio.intake.files.formats import Format
from studio.intake.files.limits import Limits
from studio.intake.mapping import DETECT_ALL, FileOptions
from studio.intake.problems import Problem, ProblemTally
from studio.intake.raw_rows import FileNote, RawRow, RowStream, UnreadableRow
from studio.intake.readers import file_reader
from studio.intake.row_formats.message_formats import to_text
from studio.intake.rows.pipeline import EXCLUSION_REASONS, ExclusionReason

HEAD_ROWS = 500
"""Rows sampled to detect the shape."""
_MAX_TRIED_ROWS = 1000
"""If none of this many rows can be read, the others are not tried."""
_MAX_BYTES = 8 * 2**20
_PARAMS: dict[ExclusionReason, str] = {
    "excluded": "exclude",
    "filtered": "keep",
    "other_part": "split.column",
    "media": "media",
    "duplicate": "deduplicate",
    "not_drawn": "sample",
}
_SHOWN_PLACES = 5


def first_rows(
    path: Path,
    kind: Format,
    limits: Limits,
    options: FileOptions = DETECT_ALL,
    tally: ProblemTally | None = None,
) -> list[RawRow]:
    """Return the first rows, as many as detection needs, or fewer if they are long.

    Rows that could not be read are counted in the tally.

    Raises:
        InvalidError: none of the first rows can be read.

    """
    tally = ProblemTally() if tally is None else tally
    head: list[RawRow] = []
    size = 0
    tried = islice(file_reader.read_rows(path, kind, limits, options=options), _MAX_TRIED_ROWS)
    for row in islice(readable_rows(tried, tally), HEAD_ROWS):
        head.append(row)
        size += sum(len(to_text(value)) for value in row.values.values())
        if size > _MAX_BYTES:
            break
    if not head:
        raise no_rows_error(kind, list(tally), {})
    return head


def readable_rows(rows: RowStream, tally: ProblemTally) -> Iterator[RawRow]:
    """Yield the rows that could be read, and count the others."""
    for row in rows:
        match row:
            case RawRow(_number, _values, member, before):
                tally.enter_member(member, before)
                yield row
            case UnreadableRow(number, code, detail, member, before):
                tally.enter_member(member, before)
                tally.add(code, number, detail)
            case FileNote(code, detail):
                tally.note(code, detail)


def no_rows_error(
    kind: Format, problems: Sequence[Problem], removed: Values[ExclusionReason, int], held: int = 0
) -> InvalidError:
    """Return the error for a file with no row left to train on: its main problem, or choice."""
    if held:
        return InvalidError(
            f"No training rows left: every row is for validation ({held:,}).",
            hint="Change the validation split.",
            param="split.kind",
        )
    if not problems or not problems[0].count:
        return _all_excluded_error(removed)
    worst = problems[0]
    places = ", ".join(worst.shown_places[:_SHOWN_PLACES]) + (
        ", …" if worst.count > _SHOWN_PLACES else ""
    )
    if file_reader.ROW_UNITS[kind] == "line":
        where = f"Lines {places}" if worst.count > 1 else f"Line {places}"
    else:
        where = f"Rows {places}" if worst.count > 1 else f"Row {places}"
    return InvalidError(
        f"None of the rows can be used. {where}: {worst.message}",
        hint="Fix the file and upload it again, or choose other columns.",
        param="file",
    )


def _all_excluded_error(removed: Values[ExclusionReason, int]) -> InvalidError:
    if not removed:
        return InvalidError(
            "The file has no rows.", hint="Choose a file that has rows.", param="file"
        )
    reason = max(removed, key=lambda reason: removed[reason])
    return InvalidError(
        f"All rows are excluded. {EXCLUSION_REASONS[reason]}: {removed[reason]:,} rows.",
        hint="Exclude fewer rows.",
        param=_PARAMS[reason],
    )
