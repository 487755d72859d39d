"""Read the rows of an Arrow file or stream, a few at a time.

A file is a stream between two marks, so one reader handles both. Batches stay on disk and are read
through the page cache; pages already read are released, however large a batch is. Their headers are
checked before any is unpacked. A message is a length, a FlatBuffers table and a body:
https://arrow.apache.org/docs/format/Columnar.html#encapsulated-message-format
"""

import mmap
import struct
from collections.abc import Collection, Iterator
from typing import Any, BinaryIO

from studio.errors import InvalidError
from studio.intake.files.limits import Limits
from studio.intake.files.magic_bytes import ARROW_MAGIC
from studio.intake.raw_rows import RowStream
from studio.intake.readers.column_names import unique_names
from studio.intake.readers.record_batches import BatchReader

_SLICE_ROWS = 16
"""Few, because each row may be as large as the row limit."""
_RELEASE_AFTER_BYTES = 32 * 2**20

MAX_BATCH_BYTES = 128 * 2**20
"""Maximum unpacked size of a batch; a batch that is not compressed stays on disk."""

_CONTINUATION_MARKER = 0xFFFFFFFF
_DICTIONARY_BATCH, _RECORD_BATCH = 2, 3
_BITS_PER_BYTE = 8


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
    _check_batches(view, start)
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


def _check_batches(view: mmap.mmap, start: int) -> None:
    """Refuse batches that need too much memory, or claim rows they do not hold.

    Raises:
        InvalidError: see above, or the stream is damaged.

    """
    try:
        for header, table, body in _read_messages(view, start):
            if header not in {_DICTIONARY_BATCH, _RECORD_BATCH}:
                continue
            batch = _table_position(view, table, 1) if header == _DICTIONARY_BATCH else table
            _check_batch(view, batch, body)
    except (struct.error, IndexError, ValueError) as error:
        raise _damaged_error() from error


def _read_messages(view: mmap.mmap, place: int) -> Iterator[tuple[int, int, tuple[int, int]]]:
    """Yield each message's header type, table position, and body position and length."""
    while place + 4 <= len(view):
        (length,) = struct.unpack_from("<I", view, place)
        place += 4
        if length == _CONTINUATION_MARKER:
            (length,) = struct.unpack_from("<I", view, place)
            place += 4
        if not length:
            return
        message = place + _unpack_int(view, "<I", place)
        header = _field_value(view, "<B", message, 1)
        size = _field_value(view, "<q", message, 3)
        place += length
        if size < 0 or place + size > len(view):
            raise ValueError
        yield header, _table_position(view, message, 2), (place, size)
        place += size


def _check_batch(view: mmap.mmap, batch: int, body: tuple[int, int]) -> None:
    rows = _field_value(view, "<q", batch, 0)
    size = body[1]
    if _field_position(view, batch, 3):
        size = sum(_uncompressed_sizes(view, batch, body))
        if size > MAX_BATCH_BYTES:
            raise InvalidError(
                f"A batch of the Arrow file unpacks to more than {MAX_BATCH_BYTES / 2**20:.3g} MB.",
                hint="Export it in smaller batches, or without compression.",
                param="file",
            )
    if not 0 <= rows <= size * _BITS_PER_BYTE:
        raise ValueError


def _uncompressed_sizes(view: mmap.mmap, batch: int, body: tuple[int, int]) -> Iterator[int]:
    """Yield the declared unpacked size of each buffer of a compressed batch."""
    vector = _table_position(view, batch, 2)
    start, size = body
    for i in range(_unpack_int(view, "<I", vector)):
        offset, length = struct.unpack_from("<qq", view, vector + 4 + 16 * i)
        if not 0 <= offset <= offset + length <= size:
            raise ValueError
        if length:
            declared = _unpack_int(view, "<q", start + offset)
            # -1 marks a buffer that is stored uncompressed.
            yield declared if declared >= 0 else length


def _table_position(view: mmap.mmap, table: int, field: int) -> int:
    """Return the position of the table or vector that a field refers to."""
    place = _field_position(view, table, field)
    if not place:
        raise ValueError
    return place + _unpack_int(view, "<I", place)


def _field_value(view: mmap.mmap, form: str, table: int, field: int) -> int:
    place = _field_position(view, table, field)
    return _unpack_int(view, form, place) if place else 0


def _field_position(view: mmap.mmap, table: int, field: int) -> int:
    """Return the position of a table's field; 0 if it is omitted."""
    fields = table - _unpack_int(view, "<i", table)
    size, slot = _unpack_int(view, "<H", fields), 4 + 2 * field
    offset = _unpack_int(view, "<H", fields + slot) if slot < size else 0
    return table + offset if offset else 0


def _unpack_int(view: mmap.mmap, form: str, place: int) -> int:
    if place < 0:
        raise ValueError
    return int(struct.unpack_from(form, view, place)[0])
