"""Read the rows of a Parquet file, a few at a time: a small file may unpack to a large one."""

import os
from collections.abc import Collection
from typing import Any, BinaryIO

from studio.errors import InvalidError
from studio.intake.files.limits import Limits
from studio.intake.raw_rows import RowStream
from studio.intake.readers.column_names import ColumnNames, unique_names
from studio.intake.readers.record_batches import BatchReader
from studio.intake.readers.text_lines import too_long_error

_BATCH_ROWS = 16
"""Few, because each row may be as large as the row limit."""
_BUFFER_BYTES = 2**20


def rows_in_parquet(source: BinaryIO, limits: Limits, columns: Collection[str] | None) -> RowStream:
    """Yield the rows, with all columns or only those named.

    Raises:
        InvalidError: the file is damaged, or a row exceeds the row limit.
        TooLargeError: it has too many columns, or its rows become too large.

    """
    import pyarrow as pa  # noqa: PLC0415 -- heavy import
    from pyarrow import parquet  # noqa: PLC0415 -- heavy import

    try:
        # With pre_buffer, whole row groups would be in memory: often the entire file.
        with parquet.ParquetFile(source, buffer_size=_BUFFER_BYTES, pre_buffer=False) as file:
            names = unique_names(file.schema_arrow.names)
            yield from names.notes()
            _check_row_sizes(file.metadata, limits.row_bytes)
            reader = BatchReader(limits, _file_size(source))
            yield from _read_batches(file, names, names.positions(columns), reader)
    except MemoryError:
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InvalidError(
            "The Parquet file is damaged and cannot be fully read.",
            hint="It may be incomplete. Export it again, or upload the rows as JSON Lines.",
            param="file",
        ) from error


def _read_batches(
    file: Any,  # noqa: ANN401 -- pyarrow is untyped
    names: ColumnNames,
    positions: list[int],
    reader: BatchReader,
) -> RowStream:
    stored_names = file.schema_arrow.names
    number = 0
    for batch in file.iter_batches(_BATCH_ROWS, columns=[stored_names[i] for i in positions]):
        # Selecting by name returns all columns with that name, and nested ones with it as a prefix.
        batch_names = set(batch.schema.names)
        unique_names_read = [
            unique
            for unique, name in zip(names.unique, stored_names, strict=True)
            if name in batch_names
        ]
        chosen = batch.rename_columns(unique_names_read)
        yield from reader.rows(chosen.select([names.unique[i] for i in positions]), number)
        number += batch.num_rows


def _file_size(source: BinaryIO) -> int:
    return os.fstat(source.fileno()).st_size


def _check_row_sizes(metadata: Any, limit: int) -> None:  # noqa: ANN401 -- pyarrow is untyped
    """Refuse rows that would exhaust memory before they could be measured."""
    # By group and not by column: asking for a broken column's size crashes the process.
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        if group.total_byte_size > limit * max(group.num_rows, 1):
            raise too_long_error("A row of the file", limit, "Remove such long rows.")
