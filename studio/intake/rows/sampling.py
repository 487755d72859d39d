"""Reproducible sampling: a sample of exact size, and a validation share."""

import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

from studio.intake.rows.deduplication import fingerprint

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
