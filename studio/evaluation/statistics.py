"""How sure a score is, and whether two models differ by more than chance."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import TypeVar

from studio.evaluation.evaluation_metric import EvaluationMetric, Metric
from studio.evaluation.rows import AnsweredRow

Z = NormalDist().inv_cdf(0.975)
"""A normal variable is within this many deviations with a probability of 95 %."""

MAX_CHANCE = 0.05
"""The largest probability of a difference by chance that counts as clear."""

MIN_DIFFERING = 6
"""If fewer rows differ, the difference may be chance, however they differ: that five all go one way
has a probability of 6 %."""

MAX_ROWS_NEEDED = 100_000

Row = TypeVar("Row", int, str)
"""What names a row: its position, or its name."""


@dataclass(frozen=True, slots=True)
class Figure:
    """The value of a metric over rows, with its 95 % interval."""

    value: float
    low: float
    high: float
    n: int
    """Rows that count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """How much two models differ on the rows that both answered."""

    first: float
    second: float
    """The values on these rows."""
    difference: float
    """The second value minus the first, with its 95 % interval."""
    low: float
    high: float
    n: int
    unpaired: int
    """Rows that are left out because they count on one side only."""
    p: float | None
    """How probable so uneven a split is by chance, for a binary metric (exact McNemar test)."""
    only_first: int
    only_second: int
    """Rows that count for one model and not for the other, for a binary metric."""
    is_clear: bool
    """Whether chance hardly explains the difference: the interval excludes 0, p is below 0.05 if
    there is one, and at least six rows differ."""
    rows_needed: int | None
    """About how many rows would make this difference clear; None if it is clear, 0, or so small
    that more than 100,000 would be needed."""


def value(metric: EvaluationMetric, rows: Sequence[AnsweredRow]) -> float:
    """Return the value of a metric alone, which is much faster; NaN if no row counts."""
    return _value(metric, list(_statistics(metric.over(rows), rows).values()))


def measure(metric: EvaluationMetric, rows: Sequence[AnsweredRow]) -> Figure | None:
    """Return the value of a metric with its interval; None if no row counts."""
    return measure_statistics(metric, _statistics(metric.over(rows), rows))


def measure_statistics(metric: Metric, rows: Mapping[Row, tuple[float, ...]]) -> Figure | None:
    """Do the same with what each row contributes."""
    statistics = list(rows.values())
    value = _value(metric, statistics)
    if not math.isfinite(value):
        return None
    n = len(statistics)
    if metric.is_binary:
        return Figure(value, *wilson(round(sum(one[0] for one in statistics)), n), n)
    import numpy as np  # noqa: PLC0415 -- heavy import

    from studio.evaluation import resampling  # noqa: PLC0415 -- heavy import

    sums = resampling.resampled_sums(np.array(statistics))
    return Figure(value, *resampling.interval(value, n, sums, metric.aggregate), n)


def compare(
    metric: EvaluationMetric, first: Sequence[AnsweredRow], second: Sequence[AnsweredRow]
) -> Comparison | None:
    """Compare two models on rows paired by position; None if no row counts on both sides.

    The interval is that of the difference over samples of pairs: a paired bootstrap, as in Koehn,
    Statistical Significance Tests for Machine Translation Evaluation (2004).
    """
    metric = metric.over([*first, *second])
    return compare_statistics(metric, _statistics(metric, first), _statistics(metric, second))


def compare_statistics(
    metric: Metric,
    first: Mapping[Row, tuple[float, ...]],
    second: Mapping[Row, tuple[float, ...]],
) -> Comparison | None:
    """Do the same with what each row contributes; rows are paired by name."""
    sides = first, second
    shared = [position for position in sides[0] if position in sides[1]]
    before, after = ([side[position] for position in shared] for side in sides)
    values = _value(metric, before), _value(metric, after)
    difference = values[1] - values[0]
    if not math.isfinite(difference):
        return None
    low, high = _difference_interval(metric, before, after, difference)
    pairs = list(zip(before, after, strict=True)) if metric.is_binary else []
    only_first = sum(one[0] > other[0] for one, other in pairs)
    only_second = sum(one[0] < other[0] for one, other in pairs)
    p = mcnemar(only_first, only_second) if metric.is_binary else None
    differing = sum(one != other for one, other in zip(before, after, strict=True))
    is_likely = differing >= MIN_DIFFERING and (p is None or p < MAX_CHANCE)
    is_clear = is_likely and not low <= 0 <= high
    needed = _rows_needed(len(shared), difference, difference - low, high - difference)
    if metric.is_binary:
        needed = max(needed, len(shared) * mcnemar_scale(only_first, only_second))
    needed = max(needed, len(shared) * MIN_DIFFERING / max(differing, 1), len(shared) + 1)
    return Comparison(
        first=values[0],
        second=values[1],
        difference=difference,
        low=low,
        high=high,
        n=len(shared),
        unpaired=len(sides[0].keys() ^ sides[1].keys()),
        p=p,
        only_first=only_first,
        only_second=only_second,
        is_clear=is_clear,
        rows_needed=None if is_clear else _about(needed),
    )


def wilson(count: int, n: int) -> tuple[float, float]:
    """Return the 95 % interval of a share.

    (p + z²/2n ± z √(p(1 - p)/n + z²/4n²)) / (1 + z²/n): Wilson, Probable Inference, the Law of
    Succession, and Statistical Inference (1927).
    """
    share, z2 = count / n, Z**2
    middle = share + z2 / (2 * n)
    reach = Z * math.sqrt(share * (1 - share) / n + z2 / (4 * n**2))
    low, high = (middle - reach) / (1 + z2 / n), (middle + reach) / (1 + z2 / n)
    return max(0.0, min(low, share)), min(1.0, max(high, share))


def mcnemar(only_first: int, only_second: int) -> float:
    """Return the probability of a split at least as uneven, if both sides were equally likely.

    2 · Σ C(n, i) / 2ⁿ over i up to the smaller side, at most 1: McNemar, Note on the Sampling Error
    of the Difference between Correlated Proportions (1947), in its exact form.
    """
    n, fewer = only_first + only_second, min(only_first, only_second)
    log_all = math.lgamma(n + 1) - n * math.log(2)
    terms = (
        math.exp(log_all - math.lgamma(count + 1) - math.lgamma(n - count + 1))
        for count in range(fewer + 1)
    )
    return min(1.0, 2 * math.fsum(terms))


def mcnemar_scale(only_first: int, only_second: int) -> float:
    """Return how many times as many rows would make a split clear if it stayed as uneven.

    Solves s · |b - c| - 1 = z √(s (b + c)), McNemar's test with a continuity correction, for s.
    """
    gap, both = abs(only_first - only_second), only_first + only_second
    if not gap:
        return math.inf
    spread = Z * math.sqrt(both)
    return float(((spread + math.sqrt(spread**2 + 4 * gap)) / (2 * gap)) ** 2)


def _statistics(
    metric: EvaluationMetric, rows: Sequence[AnsweredRow]
) -> dict[int, tuple[float, ...]]:
    """Return the statistics of the rows that count, in order of their positions."""
    ordered = sorted(rows, key=lambda row: row.position)
    statistics = ((row.position, metric.row_statistics(row)) for row in ordered)
    return {position: one for position, one in statistics if one is not None}


def _value(metric: Metric, statistics: Sequence[tuple[float, ...]]) -> float:
    """Return the value of a metric; NaN without rows."""
    if not statistics:
        return math.nan
    return metric.aggregate([math.fsum(column) for column in zip(*statistics, strict=True)])


def _difference_interval(
    metric: Metric,
    before: Sequence[tuple[float, ...]],
    after: Sequence[tuple[float, ...]],
    difference: float,
) -> tuple[float, float]:
    import numpy as np  # noqa: PLC0415 -- heavy import

    from studio.evaluation import resampling  # noqa: PLC0415 -- heavy import

    width = len(before[0])

    def score(sums: Sequence[float]) -> float:
        return metric.aggregate(sums[width:]) - metric.aggregate(sums[:width])

    sums = resampling.resampled_sums(np.hstack([np.array(before), np.array(after)]))
    return resampling.interval(difference, len(before), sums, score)


def _rows_needed(n: int, difference: float, below: float, above: float) -> float:
    """Return how many rows would move 0 out of the interval: its width falls with √n."""
    reach = below if difference > 0 else above
    return n * (reach / difference) ** 2 if difference else math.inf


def _about(rows: float) -> int | None:
    """Round up to two digits; None if there are too many."""
    if rows > MAX_ROWS_NEEDED:
        return None
    step: int = 10 ** max(0, len(str(math.ceil(rows))) - 2)
    return math.ceil(rows / step) * step
