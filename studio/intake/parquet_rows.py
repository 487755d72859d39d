"""Rows of a Parquet file, a few at a time: a small file may unpack to a very large one."""

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from studio.errors import InvalidError
from studio.intake.lines import too_long
from studio.intake.rows import Row

_BATCH_ROWS = 16
"""Few, because each may hold as much as a row may."""
_BUFFER = 2**20


def rows_in_parquet(path: Path, limit: int, columns: Collection[str] | None) -> Iterator[Row]:
    """Yield the rows, with all columns or only those named.

    Raises:
        InvalidError: the file is damaged, or its rows are longer than one may be.

    """
    import pyarrow as pa  # noqa: PLC0415 -- heavy import
    from pyarrow import parquet  # noqa: PLC0415 -- heavy import

    try:
        with parquet.ParquetFile(path, buffer_size=_BUFFER) as file:
            wanted = [
                name for name in file.schema_arrow.names if columns is None or name in columns
            ]
            _check_sizes(file.metadata, limit)
            number = 0
            for batch in file.iter_batches(_BATCH_ROWS, columns=wanted):
                for values in _values(batch):
                    number += 1
                    yield Row(number, values)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise InvalidError(
            "The Parquet file is damaged and cannot be read to its end.",
            hint="Was it copied whole? Write it anew, or bring the rows as JSON lines.",
            param="file",
        ) from error


def _check_sizes(metadata: Any, limit: int) -> None:  # noqa: ANN401 -- pyarrow is untyped
    """Refuse cells that would fill the memory before they could be measured."""
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        for column in map(group.column, range(group.num_columns)):
            if column.total_uncompressed_size > limit * max(group.num_rows, 1):
                place = f"A row of the column {column.path_in_schema}"
                raise too_long(place, limit, "Leave such long rows out.")


def _values(batch: Any) -> Iterator[dict[str, Any]]:  # noqa: ANN401 -- pyarrow is untyped
    # One row after the other: a whole batch as Python objects would be many times larger.
    for i in range(batch.num_rows):
        yield {
            name: column[i].as_py()
            for name, column in zip(batch.schema.names, batch.columns, strict=True)
        }
