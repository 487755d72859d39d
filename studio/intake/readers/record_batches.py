"""Rows of column-wise formats, one after another: all at once would be many times larger."""

from collections.abc import Iterator
from typing import Any

from studio.intake.files.limits import Limits, Meter
from studio.intake.problems import ProblemCode
from studio.intake.raw_rows import RawRow, UnreadableRow
from studio.intake.readers.arrow_sizes import unpacked_bytes
from studio.intake.readers.text_lines import not_utf8_row, too_long_row


class BatchReader:
    """Makes the rows of one file's batches, measured before they are made."""

    def __init__(self, limits: Limits, file_bytes: int) -> None:
        self._limit = limits.row_bytes
        # Its own: what a packed file unpacks to is counted elsewhere, and not twice.
        self._meter = Meter(limits, file_bytes)

    def rows(self, batch: Any, number: int) -> Iterator[RawRow | UnreadableRow]:  # noqa: ANN401 -- pyarrow is untyped
        """Yield the rows of a batch, the first of them with the number behind `number`.

        Raises:
            TooLargeError: all rows so far become too large.

        """
        columns = list(zip(batch.schema.names, batch.columns, strict=True))
        size = _batch_bytes(batch)
        if size <= self._limit:
            self._meter.add_bytes(size)
        for i in range(batch.num_rows):
            if size > self._limit:
                row_size = _batch_bytes(batch.slice(i, 1))
                if row_size > self._limit:
                    yield too_long_row(number + i + 1, self._limit)
                    continue
                self._meter.add_bytes(row_size)
            yield _read_row(columns, i, number + i + 1)


def _batch_bytes(batch: Any) -> int:  # noqa: ANN401 -- pyarrow is untyped
    return sum(map(unpacked_bytes, batch.columns))


def _read_row(columns: list[tuple[str, Any]], i: int, number: int) -> RawRow | UnreadableRow:
    try:
        return RawRow(
            number, {name: column[i].as_py(maps_as_pydicts="strict") for name, column in columns}
        )
    except KeyError:
        # A map may say a name twice.
        return UnreadableRow(number, ProblemCode.REPEATED_NAME)
    except UnicodeDecodeError as error:
        return not_utf8_row(number, error)
    except (ValueError, OverflowError, NotImplementedError) as error:
        # Such as a date that Python has no number for.
        return UnreadableRow(number, ProblemCode.BROKEN_VALUE, str(error)[:200])
