"""Find repeated 64-bit hashes and their first places, with little extra memory.

Arrow compares them, because each would be an object in Python. Places are counted from 1.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from array import array

_BLOCK_SIZE = 2**18
"""Hashes sorted at once."""


def find_repeats(hashes: "array[int]", limit: int) -> tuple[int, dict[int, int]]:
    """Return the number of repeats, and for the first `most` where each hash occurs first."""
    import pyarrow as pa  # noqa: PLC0415 -- heavy import
    from pyarrow import compute  # noqa: PLC0415 -- heavy import

    values, count = _as_arrow(hashes), 0
    first = pa.array([], pa.uint64())
    for places in _shards(values):
        repeated = _repeated_places(values, places)
        count += len(repeated)
        merged = pa.concat_arrays([first, repeated])
        first = merged.take(compute.sort_indices(merged)[:limit])
    return count, _map_to_first(first.to_pylist(), hashes, values)


def _shards(values: Any) -> Iterator[Any]:  # noqa: ANN401 -- an array of Arrow's
    """Yield all places, grouped so that equal values are together and each group sorts quickly."""
    import pyarrow as pa  # noqa: PLC0415 -- heavy import
    from pyarrow import compute  # noqa: PLC0415 -- heavy import

    mask = (1 << (len(values) // _BLOCK_SIZE).bit_length()) - 1
    starts = range(0, max(1, len(values)), _BLOCK_SIZE)
    for shard in range(mask + 1):
        parts = [
            compute.add(
                compute.indices_nonzero(
                    compute.equal(
                        compute.bit_wise_and(values[start : start + _BLOCK_SIZE], mask), shard
                    )
                ),
                pa.scalar(start, pa.uint64()),
            )
            for start in starts
        ]
        yield pa.concat_arrays(parts)


def _repeated_places(values: Any, places: Any) -> Any:  # noqa: ANN401 -- arrays of Arrow's
    """Return the places whose value also occurs at an earlier one of them."""
    from pyarrow import compute  # noqa: PLC0415 -- heavy import

    selected = values.take(places)
    order = compute.sort_indices(selected)
    ordered = selected.take(order)
    return places.take(order[1:].filter(compute.equal(ordered[1:], ordered[:-1])))


def find_common(
    hashes: "array[int]", others: "array[int]", limit: int
) -> tuple[int, dict[int, int]]:
    """Return how many are among `others`, and where the first `most` occur first there."""
    from pyarrow import compute  # noqa: PLC0415 -- heavy import

    values, other_values = _as_arrow(hashes), _as_arrow(others)
    # Look up the smaller set: the validation rows, not the training rows.
    shared = compute.unique(other_values.filter(compute.is_in(other_values, value_set=values)))
    common = compute.indices_nonzero(compute.is_in(values, value_set=shared))
    return len(common), _map_to_first(common[:limit].to_pylist(), hashes, other_values)


def _map_to_first(places: list[int], hashes: "array[int]", known: Any) -> dict[int, int]:  # noqa: ANN401 -- an array of Arrow's
    """Return each place with the first place of its hash in `known`, both counted from 1."""
    import pyarrow as pa  # noqa: PLC0415 -- heavy import
    from pyarrow import compute  # noqa: PLC0415 -- heavy import

    needed = {hashes[place] for place in places}
    firsts: dict[int, int] = {}
    is_present = compute.is_in(known, value_set=pa.array(needed, pa.int64()))
    for place in compute.indices_nonzero(is_present):
        if len(firsts) == len(needed):
            break
        index = place.as_py()
        firsts.setdefault(known[index].as_py(), index)
    return {place + 1: firsts[hashes[place]] + 1 for place in places}


def _as_arrow(hashes: "array[int]") -> Any:  # noqa: ANN401 -- an array of Arrow's
    """Return an Arrow view of the same memory."""
    import pyarrow as pa  # noqa: PLC0415 -- heavy import

    return pa.Array.from_buffers(pa.int64(), len(hashes), [None, pa.py_buffer(hashes)])
