"""Check the batches of an Arrow stream by their headers, before any is unpacked.

A message is a length, a FlatBuffers table and a body:
https://arrow.apache.org/docs/format/Columnar.html#encapsulated-message-format
"""

import struct
from collections.abc import Iterator
from mmap import mmap

from studio.errors import InvalidError

MAX_BATCH_BYTES = 128 * 2**20
"""Maximum unpacked size of a batch; a batch that is not compressed stays on disk."""

_CONTINUATION_MARKER = 0xFFFFFFFF
_DICTIONARY_BATCH, _RECORD_BATCH = 2, 3
_BITS_PER_BYTE = 8


def check_batches(view: mmap, start: int) -> None:
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
        raise InvalidError(
            "The Arrow file is damaged and cannot be fully read.",
            hint="It may be incomplete. Export it again, or upload the rows as JSON Lines.",
            param="file",
        ) from error


def _read_messages(view: mmap, place: int) -> Iterator[tuple[int, int, tuple[int, int]]]:
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


def _check_batch(view: mmap, batch: int, body: tuple[int, int]) -> None:
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


def _uncompressed_sizes(view: mmap, batch: int, body: tuple[int, int]) -> Iterator[int]:
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


def _table_position(view: mmap, table: int, field: int) -> int:
    """Return the position of the table or vector that a field refers to."""
    place = _field_position(view, table, field)
    if not place:
        raise ValueError
    return place + _unpack_int(view, "<I", place)


def _field_value(view: mmap, form: str, table: int, field: int) -> int:
    place = _field_position(view, table, field)
    return _unpack_int(view, form, place) if place else 0


def _field_position(view: mmap, table: int, field: int) -> int:
    """Return the position of a table's field; 0 if it is omitted."""
    fields = table - _unpack_int(view, "<i", table)
    size, slot = _unpack_int(view, "<H", fields), 4 + 2 * field
    offset = _unpack_int(view, "<H", fields + slot) if slot < size else 0
    return table + offset if offset else 0


def _unpack_int(view: mmap, form: str, place: int) -> int:
    if place < 0:
        raise ValueError
    return int(struct.unpack_from(form, view, place)[0])
