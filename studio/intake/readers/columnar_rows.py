"""Read the rows of Parquet files, and of Arrow files and streams, a few at a time.

A small Parquet file may unpack to a large one.

An Arrow file is a stream between two marks, so one reader handles both. Batches stay on disk and
are read through the page cache; pages already read are released, however large a batch is. Their
headers are checked before any is unpacked. A message is a length, a FlatBuffers table and a body:
https://arrow.apache.org/docs/format/Columnar.html#encapsulated-message-format
"""

import mmap
import os
import struct
from collections.abc import Callable, Collection, Iterator
from typing import Any, BinaryIO

from studio.errors import InvalidError
from studio.intake.files.formats import ARROW_MAGIC
from studio.intake.files.limits import Limits, Meter
from studio.intake.files.packages import load_arrow
from studio.intake.problems import ProblemCode
from studio.intake.raw_rows import RawRow, RowStream, UnreadableRow
from studio.intake.readers.column_names import ColumnNames, unique_names
from studio.intake.readers.label_names import LabelNames, name_labels, read_label_names
from studio.intake.readers.text_rows import not_utf8_row, too_long_error, too_long_row


class BatchReader:
    """Converts the batches of one file to rows, measured before they are created."""

    def __init__(self, limits: Limits, file_bytes: int, names: LabelNames) -> None:
        self._limit = limits.row_bytes
        self._names = names
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
            yield _read_row(columns, i, number + i + 1, self._names)


def _batch_bytes(batch: Any) -> int:  # noqa: ANN401 -- pyarrow is untyped
    return sum(map(unpacked_bytes, batch.columns))


def _read_row(
    columns: list[tuple[str, Any]], i: int, number: int, names: LabelNames
) -> RawRow | UnreadableRow:
    try:
        values = ((name, column[i].as_py(maps_as_pydicts="strict")) for name, column in columns)
        return RawRow(number, {name: name_labels(name, value, names) for name, value in values})
    except KeyError:
        # A map may repeat a key.
        return UnreadableRow(number, ProblemCode.REPEATED_NAME)
    except UnicodeDecodeError as error:
        return not_utf8_row(number, error)
    except (ValueError, OverflowError, NotImplementedError) as error:
        # For example a date outside Python's range.
        return UnreadableRow(number, ProblemCode.BROKEN_VALUE, str(error)[:200])


_VIEW_BYTES = 16


def unpacked_bytes(array: Any) -> int:  # noqa: ANN401 -- pyarrow is untyped
    """Return the maximum size of an array's values as plain values, in bytes.

    A value without bytes, such as a null, counts as one byte.
    """
    from pyarrow import types  # noqa: PLC0415 -- heavy import

    for names, measure in _NESTED.items():
        if any(getattr(types, f"is_{name}")(array.type) for name in names):
            return len(array) + measure(array)
    return max(len(array), int(array.nbytes))


def _in_dictionary(array: Any) -> int:  # noqa: ANN401 -- pyarrow is untyped
    from pyarrow import compute, types  # noqa: PLC0415 -- heavy import

    values = array.dictionary
    flat = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
    if not any(is_flat(values.type) for is_flat in flat):
        return len(array) * unpacked_bytes(values)
    lengths = compute.binary_length(values).take(array.indices)
    return int(compute.sum(lengths).as_py() or 0)


def _in_views(array: Any) -> int:  # noqa: ANN401 -- pyarrow is untyped
    """Sum up the lengths of the views: the first four bytes of each."""
    views = memoryview(array.buffers()[1]).cast("i")
    start, step = array.offset * _VIEW_BYTES // 4, _VIEW_BYTES // 4
    return sum(views[start : start + len(array) * step : step])


def _in_fields(array: Any) -> int:  # noqa: ANN401 -- pyarrow is untyped
    return sum(map(unpacked_bytes, array.flatten()))


def _in_lists(array: Any) -> int:  # noqa: ANN401 -- pyarrow is untyped
    return _between_offsets(array, array.values)


def _in_maps(array: Any) -> int:  # noqa: ANN401 -- pyarrow is untyped
    return _between_offsets(array, array.keys) + _between_offsets(array, array.items)


def _between_offsets(array: Any, child: Any) -> int:  # noqa: ANN401 -- pyarrow is untyped
    if not len(array):
        return 0
    start, end = array.offsets[0].as_py(), array.offsets[-1].as_py()
    return unpacked_bytes(child.slice(start, end - start))


def _in_list_views(array: Any) -> int:  # noqa: ANN401 -- pyarrow is untyped
    return int(sum(array.sizes.to_pylist())) * unpacked_bytes(array.values)


def _in_runs(array: Any) -> int:  # noqa: ANN401 -- pyarrow is untyped
    return len(array) * unpacked_bytes(array.values)


def _in_unions(array: Any) -> int:  # noqa: ANN401 -- pyarrow is untyped
    fields = map(array.field, range(array.type.num_fields))
    return len(array) * sum(map(unpacked_bytes, fields))


_NESTED: dict[tuple[str, ...], Callable[[Any], int]] = {
    ("dictionary",): _in_dictionary,
    ("string_view", "binary_view"): _in_views,
    ("struct",): _in_fields,
    ("map",): _in_maps,
    ("list", "large_list"): _in_lists,
    ("fixed_size_list",): lambda array: unpacked_bytes(array.flatten()),
    ("list_view", "large_list_view"): _in_list_views,
    ("run_end_encoded",): _in_runs,
    ("union",): _in_unions,
}


_BATCH_ROWS = 16
"""Few, because each row may be as large as the row limit."""
_BUFFER_BYTES = 2**20


def rows_in_parquet(source: BinaryIO, limits: Limits, columns: Collection[str] | None) -> RowStream:
    """Yield the rows, with all columns or only those named.

    Raises:
        InvalidError: the file is damaged, or a row exceeds the row limit.
        TooLargeError: it has too many columns, or its rows become too large.

    """
    load_arrow()
    import pyarrow as pa  # noqa: PLC0415 -- heavy import
    from pyarrow import parquet  # noqa: PLC0415 -- heavy import

    try:
        # With pre_buffer, whole row groups would be in memory: often the entire file.
        with parquet.ParquetFile(source, buffer_size=_BUFFER_BYTES, pre_buffer=False) as file:
            names = unique_names(file.schema_arrow.names)
            yield from names.notes()
            _check_row_sizes(file.metadata, limits.row_bytes)
            labels = read_label_names(file.schema_arrow.metadata)
            reader = BatchReader(limits, _file_size(source), labels)
            yield from _read_row_groups(file, names, names.positions(columns), reader)
    except MemoryError:
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InvalidError(
            "The Parquet file is damaged and cannot be fully read.",
            hint="It may be incomplete. Export it again, or upload the rows as JSON Lines.",
            param="file",
        ) from error


def _read_row_groups(
    file: Any,  # noqa: ANN401 -- pyarrow is untyped
    names: ColumnNames,
    positions: list[int],
    reader: BatchReader,
) -> RowStream:
    stored_names = file.schema_arrow.names
    number = 0
    # Threads take twice as long for so few rows, and a sealed process cannot start any.
    columns = [stored_names[i] for i in positions]
    for batch in file.iter_batches(_BATCH_ROWS, columns=columns, use_threads=False):
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
    """Measure it by its end: a sealed process cannot ask the system about a file."""
    position = source.tell()
    size = source.seek(0, os.SEEK_END)
    source.seek(position)
    return size


def _check_row_sizes(metadata: Any, limit: int) -> None:  # noqa: ANN401 -- pyarrow is untyped
    """Refuse rows that would exhaust memory before they could be measured."""
    # By group and not by column: asking for a broken column's size crashes the process.
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        if group.total_byte_size > limit * max(group.num_rows, 1):
            raise too_long_error("A row of the file", limit, "Remove such long rows.")


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
    load_arrow()
    import pyarrow as pa  # noqa: PLC0415 -- heavy import

    view = mmap.mmap(source.fileno(), _file_size(source), access=mmap.ACCESS_READ)
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
    batch_reader = BatchReader(limits, len(view), read_label_names(reader.schema.metadata))
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
