"""Read the rows of an Arrow file or stream, a few at a time.

A file is a stream between two marks, so one reader handles both. Batches stay on disk and are read
through the page cache; pages already read are released, however large a batch is.
"""

import mmap
from collections.abc import Collection
from typing import Any, BinaryIO

from studio.errors import InvalidError
from studio.intake.files.limits import Limits
from studio.intake.files.magic_bytes import ARROW_MAGIC
from studio.intake.raw_rows import RowStream
from studio.intake.readers.arrow_batch_check import MAX_BATCH_BYTES, check_batches
from studio.intake.readers.column_names import unique_names
from studio.intake.readers.record_batches import BatchReader

_SLICE_ROWS = 16
"""Few, because each row may be as large as the row limit."""
_RELEASE_AFTER_BYTES = 32 * 2**20


def rows_in_arrow(source: BinaryIO, limits: Limits, columns: Collection[str] | None) -> RowStream:
    """Yield the rows, with all columns or only those named.

    Raises:
        InvalidError: the file is damaged, or its batches are too large to unpack.
        TooLargeError: it has too many columns, or its rows become too large.

    """
    import pyarrow as pa  # noqa: PLC0415 -- heavy import

    view = mmap.mmap(source.fileno(), 0, access=mmap.ACCESS_READ)
    start = 8 if view[: len(ARROW_MAGIC)] == ARROW_MAGIC else 0
    if start and view[-len(ARROW_MAGIC) :] != ARROW_MAGIC:
        raise _damaged_error()
    check_batches(view, start)
    try:
        stream = pa.BufferReader(pa.py_buffer(view).slice(start))
        yield from _read_batches(pa.ipc.open_stream(stream), view, limits, columns)
    except MemoryError:
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _damaged_error() from error


def _read_batches(
    reader: Any,  # noqa: ANN401 -- pyarrow is untyped
    view: mmap.mmap,
    limits: Limits,
    columns: Collection[str] | None,
) -> RowStream:
    batch_reader = BatchReader(limits, len(view))
    number = read_bytes = 0
    names = unique_names(reader.schema.names)
    yield from names.notes()
    for batch in reader:
        chosen = batch.rename_columns(names.unique).select(names.positions(columns))
        plain = _check_dictionaries(chosen)
        for start in range(0, chosen.num_rows, _SLICE_ROWS):
            piece = chosen.slice(start, _SLICE_ROWS)
            piece.select(plain).validate(full=True)
            yield from batch_reader.rows(piece, number)
            number += piece.num_rows
            read_bytes += piece.select(plain).nbytes
            if read_bytes > _RELEASE_AFTER_BYTES:
                read_bytes = 0
                _release_pages(view)


def _check_dictionaries(batch: Any) -> list[int]:  # noqa: ANN401 -- pyarrow is untyped
    """Check a batch's dictionaries, and return the indices of columns without one.

    Each row of a column refers to the whole dictionary, so its size counts only once.
    """
    import pyarrow as pa  # noqa: PLC0415 -- heavy import

    plain = []
    for i, column in enumerate(batch.columns):
        if not pa.types.is_dictionary(column.type):
            plain.append(i)
            continue
        column.validate(full=True)
        if column.dictionary.nbytes > MAX_BATCH_BYTES:
            raise _damaged_error()
    return plain


def _release_pages(view: mmap.mmap) -> None:
    if hasattr(mmap, "MADV_DONTNEED"):
        view.madvise(mmap.MADV_DONTNEED)


def _damaged_error() -> InvalidError:
    return InvalidError(
        "The Arrow file is damaged and cannot be fully read.",
        hint="It may be incomplete. Export it again, or upload the rows as JSON Lines.",
        param="file",
    )
