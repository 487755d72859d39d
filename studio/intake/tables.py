"""Rows of column-wise formats, one after another: all at once would be many times larger."""

from collections.abc import Iterator
from typing import Any

from studio.intake.lines import not_utf8
from studio.intake.problems import Code
from studio.intake.rows import Row, Unread


def rows_in_batch(batch: Any, number: int) -> Iterator[Row | Unread]:  # noqa: ANN401 -- pyarrow is untyped
    """Yield the rows of a batch, the first of them with the number behind `number`."""
    columns = list(zip(batch.schema.names, batch.columns, strict=True))
    for i in range(batch.num_rows):
        yield _row(columns, i, number + i + 1)


def _row(columns: list[tuple[str, Any]], i: int, number: int) -> Row | Unread:
    try:
        return Row(
            number, {name: column[i].as_py(maps_as_pydicts="strict") for name, column in columns}
        )
    except KeyError:
        # A map may say a name twice.
        return Unread(number, Code.REPEATED_NAME)
    except UnicodeDecodeError as error:
        return not_utf8(number, error)
    except (ValueError, OverflowError, NotImplementedError) as error:
        # Such as a date that Python has no number for.
        return Unread(number, Code.BROKEN_VALUE, str(error)[:200])
