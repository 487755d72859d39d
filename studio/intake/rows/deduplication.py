"""Detect duplicate rows, in memory that stays small for tens of millions, and sample rows.

Arrow compares arrays of hashes, because each hash would be an object in Python. Places are
counted from 1.
"""

import random
import tempfile
from array import array
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any

from studio.intake.files.packages import load_arrow
from studio.intake.row_formats.schema import CanonicalRow, Turn

_SHARD_COUNT = 256
"""Each shard grows separately, so the whole set is never in memory twice."""
_INITIAL_SLOTS = 64
_MAX_LOAD = 0.8
_BLOCK_SIZE = 2**18
"""Hashes that Arrow sorts at once."""


class SeenHashes:
    """A set of 64-bit hashes, eleven bytes each on average.

    Among ten million distinct rows, two are mistaken for duplicates with a probability of 1 in
    350,000.
    """

    def __init__(self) -> None:
        self._shards = [_Shard() for _ in range(_SHARD_COUNT)]

    def add(self, content: bytes) -> bool:
        """Add content, and tell whether it is new."""
        digest = fingerprint(content)
        return self._shards[digest % _SHARD_COUNT].add(digest // _SHARD_COUNT)


class _Shard:
    """A hash table with open addressing; zero marks a free slot."""

    def __init__(self) -> None:
        self.slots = array("Q", bytes(8 * _INITIAL_SLOTS))
        self.used = 0

    def add(self, digest: int) -> bool:
        if self.used >= _MAX_LOAD * len(self.slots):
            self._grow()
        slot = self._find_slot(digest + 1)
        if self.slots[slot]:
            return False
        self.slots[slot] = digest + 1
        self.used += 1
        return True

    def _find_slot(self, value: int) -> int:
        slots = self.slots
        slot = value % len(slots)
        while slots[slot] not in (0, value):
            slot = (slot + 1) % len(slots)
        return slot

    def _grow(self) -> None:
        old_slots = self.slots
        # An odd length spreads the digests even if their low bits are equal.
        self.slots = array("Q", bytes(8 * (len(old_slots) * 5 // 4 | 1)))
        for value in old_slots:
            if value:
                self.slots[self._find_slot(value)] = value


def fingerprint(content: bytes, seed: int = 0) -> int:
    """Return a 64-bit hash that is stable across processes and machines."""
    salt = seed.to_bytes(8, "big")
    return int.from_bytes(blake2b(content, digest_size=8, salt=salt).digest(), "big")


def question_key(row: CanonicalRow) -> bytes:
    """Return the question of a row: its system and user turns, without the answers."""
    if "text" in row:
        return row["text"].strip().encode()
    if "anchor" in row:
        return row["anchor"].encode()
    prompt = [turn for turn in row["messages"] if turn["role"] in {"system", "user"}]
    return "\0".join(map(_turn_key, prompt)).encode()


def _turn_key(turn: Turn) -> str:
    images = "".join(f"\0{image['sha256']}" for image in turn.get("images", ()))
    return f"{turn['role']}\0{turn['content'].strip()}{images}"


def find_repeats(hashes: "array[int]", limit: int) -> tuple[int, dict[int, int]]:
    """Return the number of repeats, and for the first `limit` where each hash occurs first."""
    load_arrow()
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
    """Return how many are among `others`, and where the first `limit` occur first there."""
    load_arrow()
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


_HASH_RANGE = 2**64


def is_held_out(group: bytes, share: float, seed: int) -> bool:
    """Tell whether a row is for validation, by its content, so that equal rows stay together.

    Adding or removing a row does not move any other.
    """
    return fingerprint(group, seed) < share * _HASH_RANGE


def sample_lines(lines: Iterator[bytes], count: int, seed: int, folder: Path) -> Iterator[bytes]:
    """Yield `count` of the lines in order, each with equal probability.

    The total is known only at the end; until then the lines are stored on disk, in `folder`.
    """
    with tempfile.TemporaryFile(dir=folder) as spool:
        rows = 0
        for line in lines:
            spool.write(line)
            rows += 1
        spool.seek(0)
        rng = random.Random(seed)  # noqa: S311 -- no secret
        remaining = min(count, rows)
        for left, line in zip(range(rows, 0, -1), spool, strict=True):
            # Selection sampling (Knuth, TAOCP 2, 3.4.2 S): it needs only two counts in memory.
            if rng.random() * left < remaining:
                remaining -= 1
                yield line
