"""What a metric of an evaluation is.

All work alike: each row contributes statistics, these are summed, and the sums give the value. So
an interval by resampling rows is as simple for BLEU of a corpus as for a mean.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from studio.evaluation import text_scores
from studio.evaluation.rows import AnsweredRow, AnswerKind
from studio.evaluation.text_scores import Statistics

Unit = Literal["share", "score", "nats", "bits", "tokens", "ratio", "number"]

UNIT_DIGITS: Mapping[Unit, int] = {"score": 1, "nats": 3, "bits": 3, "tokens": 1, "ratio": 3}
"""Digits after the decimal point. A share is a percentage, a number is in the units of the data:
both have significant digits instead."""

RowStatistics = Callable[[AnsweredRow], Statistics | None]

_VERSION = 1
"""Raise it when a change makes scores differ from earlier ones; signatures show it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """What a metric means, and how sums of statistics give its value."""

    key: str
    title: str
    unit: Unit
    """`share` is a part of 1, `score` from 0 to 100."""
    better: Literal["higher", "lower", "neither"] = "higher"
    note: str
    """What it measures, and when to look at it."""
    phrase: str
    """How a sentence writes its value."""
    is_binary: bool = False
    """Whether each row is counted or not."""
    aggregate: Callable[[Sequence[float]], float] = text_scores.ratio
    """Returns the value from the sums of the rows' statistics; NaN if there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationMetric(Metric):
    """A metric of what models answer to rows."""

    needs_reference: bool = True
    kind: AnswerKind = "text"
    """What kind of answers it measures."""
    row_statistics: RowStatistics
    """What a row contributes; None if it does not count."""
    prepare: Callable[[Sequence[AnsweredRow]], RowStatistics] | None = None
    """Returns `row_statistics` for rows, if what one contributes depends on all of them."""
    signature: Callable[[Sequence[AnsweredRow]], str]
    """Returns how exactly it is computed: only values with equal signatures compare."""

    def over(self, rows: Sequence[AnsweredRow]) -> "EvaluationMetric":
        """Return the metric prepared for all rows that it will count, of all models."""
        if self.prepare is None:
            return self
        return replace(self, row_statistics=self.prepare(rows), prepare=None)


def _signature(rules: str, _rows: Sequence[AnsweredRow]) -> str:
    return f"{rules}|v:{_VERSION}"


def signed(rules: str) -> Callable[[Sequence[AnsweredRow]], str]:
    return partial(_signature, rules)
