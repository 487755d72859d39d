"""Convert column-wise batches to rows one by one: all at once would be many times larger."""

from collections.abc import Iterator
from typing import Any

from studio.intake.files.limits import Limits, Meter
from studio.intake.problems import ProblemCode
from studio.intake.raw_rows import RawRow, UnreadableRow
from studio.intake.readers.arrow_sizes import unpacked_bytes
from studio.intake.readers.text_lines import not_utf8_row, too_long_row


class BatchReader:
    """Converts the batches of one file to rows, measured before they are created."""

    def __init__(self, limits: Limits, file_bytes: int) -> None:
        self._limit = limits.row_bytes
        # A separate meter: the bytes a packed file unpacks to are counted elsewhere.
        self._meter = Meter(limits, file_bytes)

    def rows(self, batch: Any, number: int) -> Iterator[RawRow | UnreadableRow]:  # noqa: ANN401 -- pyarrow is untyped
        """Yield the rows of a batch, numbered from `number` + 1.

        Raises:
            TooLargeError: all rows so far exceed the limit.

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
        # A map may repeat a key.
        return UnreadableRow(number, ProblemCode.REPEATED_NAME)
    except UnicodeDecodeError as error:
        return not_utf8_row(number, error)
    except (ValueError, OverflowError, NotImplementedError) as error:
        # For example a date outside Python's range.
        return UnreadableRow(number, ProblemCode.BROKEN_VALUE, str(error)[:200])
