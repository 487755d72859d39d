"""Measure the size of Arrow columns as plain values, before any value is created.

A dictionary value, a run or an overlapping view is stored once, but becomes a value in each row.
"""

from collections.abc import Callable
from typing import Any

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
