"""Convert column-wise batches to rows one by one: all at once would be many times larger."""

from collections.abc import Callable, Iterator
from typing import Any

from studio.intake.files.limits import Limits, Meter
from studio.intake.problems import ProblemCode
from studio.intake.raw_rows import RawRow, UnreadableRow
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
