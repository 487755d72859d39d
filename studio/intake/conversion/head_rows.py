"""The first rows of a file, and what is said when none can be used."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

from studio.errors import InvalidError
from studio.intake.files.formats import Format
from studio.intake.files.limits import Limits
from studio.intake.mapping import DETECT, FileOptions
from studio.intake.problems import Problem, Tally
from studio.intake.raw_rows import Note, Row, Rows, Unread
from studio.intake.readers import file_reader
from studio.intake.row_formats.cell_text import plain
from studio.intake.rows.filters import REASONS, Reason

LOOKED_AT = 500
"""Rows that a shape is told from."""
_PATIENCE = 1000
"""If none of so many rows can be read, the others will not be tried."""
_BYTES = 8 * 2**20
_PARAMS: dict[Reason, str] = {
    "excluded": "exclude",
    "filtered": "keep",
    "other_part": "split.column",
    "media": "media",
    "duplicate": "deduplicate",
    "not_drawn": "sample",
}
_NAMED = 5


def first_rows(
    path: Path,
    kind: Format,
    limits: Limits,
    options: FileOptions = DETECT,
    tally: Tally | None = None,
) -> list[Row]:
    """Return the first rows, as many as a shape is told from, or fewer if they are long.

    What could not be read is counted in the tally.

    Raises:
        InvalidError: none of the first can be read.

    """
    tally = Tally() if tally is None else tally
    found: list[Row] = []
    size = 0
    tried = islice(file_reader.rows(path, kind, limits, options=options), _PATIENCE)
    for row in islice(readable(tried, tally), LOOKED_AT):
        found.append(row)
        size += sum(len(plain(value)) for value in row.values.values())
        if size > _BYTES:
            break
    if not found:
        raise nothing_left(kind, list(tally), {})
    return found


def readable(rows: Rows, tally: Tally) -> Iterator[Row]:
    """Yield the rows that could be read, and count the others."""
    for row in rows:
        match row:
            case Row(_number, _values, member, before):
                tally.reach(member, before)
                yield row
            case Unread(number, code, detail, member, before):
                tally.reach(member, before)
                tally.add(code, number, detail)
            case Note(code, detail):
                tally.note(code, detail)


def nothing_left(
    kind: Format, problems: Sequence[Problem], removed: Mapping[Reason, int], held: int = 0
) -> InvalidError:
    """Say why no row is left to train on: what is wrong with most of them, or what was chosen."""
    if held:
        return InvalidError(
            f"No row is left to train on: all {held:,} are for validation.",
            hint="Say otherwise which rows are held back.",
            param="split.kind",
        )
    if not problems or not problems[0].count:
        return _nothing_wanted(removed)
    worst = problems[0]
    places = ", ".join(worst.shown[:_NAMED]) + (", …" if worst.count > _NAMED else "")
    if file_reader.PLACES[kind] == "line":
        where = f"Lines {places}" if worst.count > 1 else f"Line {places}"
    else:
        where = f"Rows {places}" if worst.count > 1 else f"Row {places}"
    return InvalidError(
        f"No row can be used. {where}: {worst.message}",
        hint="Mend the file and upload it again, or choose other columns.",
        param="file",
    )


def _nothing_wanted(removed: Mapping[Reason, int]) -> InvalidError:
    if not removed:
        return InvalidError("The file has no rows.", hint="Choose a file with rows.", param="file")
    reason = max(removed, key=lambda reason: removed[reason])
    return InvalidError(
        f"No row is left. {REASONS[reason]}: {removed[reason]:,} rows.",
        hint="Leave fewer rows out.",
        param=_PARAMS[reason],
    )
