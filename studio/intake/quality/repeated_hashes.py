"""Which hashes of 64 bits come again, and where first, in memory that stays near their own.

Arrow compares them outside Python, where each would be an object. Places are counted from one.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from array import array

_BLOCK_SIZE = 2**18
"""Hashes that are sorted at once."""


def find_repeats(hashes: "array[int]", most: int) -> tuple[int, dict[int, int]]:
    """Return how many stood before already, and of the first `most` where they stood first."""
    import pyarrow as pa  # noqa: PLC0415 -- heavy import
    from pyarrow import compute  # noqa: PLC0415 -- heavy import

    values, count = _as_arrow(hashes), 0
    first = pa.array([], pa.uint64())
    for places in _shards(values):
        found = _repeated_places(values, places)
        count += len(found)
        both = pa.concat_arrays([first, found])
        first = both.take(compute.sort_indices(both)[:most])
    return count, _map_to_first(first.to_pylist(), hashes, values)


def _shards(values: Any) -> Iterator[Any]:  # noqa: ANN401 -- an array of Arrow's
    """Yield all places, those of equal values together, as many at a time as are soon sorted."""
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
    """Return those of some places whose value stands at one of them before."""
    from pyarrow import compute  # noqa: PLC0415 -- heavy import

    own = values.take(places)
    order = compute.sort_indices(own)
    ordered = own.take(order)
    return places.take(order[1:].filter(compute.equal(ordered[1:], ordered[:-1])))


def find_common(
    hashes: "array[int]", others: "array[int]", most: int
) -> tuple[int, dict[int, int]]:
    """Return how many stand among the others, too, and of the first `most` where first."""
    from pyarrow import compute  # noqa: PLC0415 -- heavy import

    values, known = _as_arrow(hashes), _as_arrow(others)
    # The fewer ones are looked up: those that are held back, not those that are learnt.
    shared = compute.unique(known.filter(compute.is_in(known, value_set=values)))
    both = compute.indices_nonzero(compute.is_in(values, value_set=shared))
    return len(both), _map_to_first(both[:most].to_pylist(), hashes, known)


def _map_to_first(places: list[int], hashes: "array[int]", known: Any) -> dict[int, int]:  # noqa: ANN401 -- an array of Arrow's
    """Return each place with the first place of its hash among those known, both from one on."""
    import pyarrow as pa  # noqa: PLC0415 -- heavy import
    from pyarrow import compute  # noqa: PLC0415 -- heavy import

    wanted = {hashes[place] for place in places}
    firsts: dict[int, int] = {}
    there = compute.is_in(known, value_set=pa.array(wanted, pa.int64()))
    for place in compute.indices_nonzero(there):
        if len(firsts) == len(wanted):
            break
        index = place.as_py()
        firsts.setdefault(known[index].as_py(), index)
    return {place + 1: firsts[hashes[place]] + 1 for place in places}


def _as_arrow(hashes: "array[int]") -> Any:  # noqa: ANN401 -- an array of Arrow's
    """Return the same memory as Arrow sees it."""
    import pyarrow as pa  # noqa: PLC0415 -- heavy import

    return pa.Array.from_buffers(pa.int64(), len(hashes), [None, pa.py_buffer(hashes)])
