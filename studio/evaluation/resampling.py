"""The bootstrap: how far a value scatters over samples of rows. Imports numpy."""

import math
from collections.abc import Callable, Sequence
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

Table = npt.NDArray[np.float64]
"""The statistics of rows: a row each."""

RESAMPLES = 10_000
LEVEL = 0.95

_SEED = 20_250_101
"""Equal rows have equal intervals whenever they are computed."""

_CELLS = 1_000_000
"""Drawn rows in memory at a time: about 30 MB."""

_MAX_UNITS = 4_000
"""More rows are joined at random in as many blocks of equal size, which are then drawn like rows.

The scatter of their sums is that of the rows' sums, known to 1 / √(2 · 4,000) = 1 % of its size.
"""


def resampled_sums(table: Table) -> list[list[float]]:
    """Return the sums of the columns over each of 10,000 samples of rows, drawn with replacement.

    Source: Efron, Bootstrap Methods: Another Look at the Jackknife (1979).
    """
    rng = np.random.default_rng(_SEED)
    units = _join_rows(table, rng)
    count = len(units)
    size = max(1, _CELLS // count)
    sums: list[list[float]] = []
    for start in range(0, RESAMPLES, size):
        samples = min(size, RESAMPLES - start)
        drawn = rng.integers(count, size=(samples, count))
        drawn += np.arange(samples)[:, None] * count
        times = np.bincount(drawn.ravel(), minlength=samples * count).reshape(samples, count)
        sums += (times.astype(np.float64) @ units).tolist()
    return sums


def _join_rows(table: Table, rng: np.random.Generator) -> Table:
    """Return the rows, or the sums of random blocks if there are many rows."""
    if len(table) <= _MAX_UNITS:
        return table
    starts = np.linspace(0, len(table), _MAX_UNITS, endpoint=False).astype(np.int64)
    joined: Table = np.add.reduceat(rng.permutation(table), starts)
    return joined


def interval(
    value: float, rows: int, sums: Sequence[Sequence[float]], score: Callable[..., float]
) -> tuple[float, float]:
    """Return the 95 % interval of a value over samples of rows; it contains the value.

    Percentiles of few rows are too narrow. They are taken further out, at
    Φ(-t · √(n / (n - 1))) with Student's t of n - 1 degrees of freedom: Hesterberg, What Teachers
    Should Know About the Bootstrap (2015). Samples without a value do not count: R² of equal
    targets, for example, does not exist. With one row, nothing is known: the interval is the value.
    """
    if rows < 2:  # noqa: PLR2004 -- scatter needs two
        return value, value
    values = np.array([score(one) for one in sums])
    values = values[np.isfinite(values)]
    if not len(values):
        return value, value
    tail = NormalDist().cdf(-student_t(rows - 1) * math.sqrt(rows / (rows - 1)))
    low, high = np.quantile(values, (tail, 1 - tail)).tolist()
    return min(low, value), max(high, value)


def student_t(freedom: int) -> float:
    """Return the limit that Student's t stays within with a probability of 95 %.

    Accurate to 1 % from two degrees of freedom on: Abramowitz and Stegun, 26.7.5.
    """
    z = NormalDist().inv_cdf((1 + LEVEL) / 2)
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92_160,
    )
    return math.fsum(term / freedom**power for power, term in enumerate(terms))
