"""What an evaluation found: each metric for both models, what differs, and the telling rows."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from sqlmodel import Session

from studio.db.evaluations import Answer, AnswerSet, Evaluation
from studio.evaluation import metrics, statistics, verdicts
from studio.evaluation.evaluation_metric import EvaluationMetric
from studio.evaluation.rows import AnsweredRow, AnswerKind
from studio.evaluation.statistics import Comparison, Figure
from studio.intake.row_formats.image_marks import find_marks
from studio.services.evaluations import answer_sets, evaluations

RowOrder = Literal["worst", "gained", "lost", "surprise", "row"]

ORDERS: Mapping[RowOrder, str] = {
    "worst": "Worst first",
    "gained": "Most improved",
    "lost": "Most worsened",
    "surprise": "Least expected reference",
    "row": "Order of the data",
}
"""The orders of the rows of an evaluation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricResult:
    """A metric of both models on the rows that both answered."""

    metric: EvaluationMetric
    base: Figure
    tuned: Figure
    comparison: Comparison
    signature: str
    is_better: bool | None
    """Whether the run's model is clearly better or clearly worse; None if that is not clear."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPair:
    """A row that both models answered."""

    number: int
    prompt: str
    reference: str
    base: AnsweredRow
    tuned: AnsweredRow
    base_score: float | None
    tuned_score: float | None
    """Values of the metric that scores single rows."""
    quality: float | None
    """The score of the run's model, higher if it is better."""
    gain: float
    """How much better the run's model did: its score less that of the base model."""
    surprise: float
    """The loss of the reference in nats per token: how little the run's model expected it."""
    overlap: str
    """`exact` or `ngram` if the row occurs in the data that the run was trained on."""

    @property
    def is_one_message(self) -> bool:
        """Whether the prompt is one message: several are written with their roles."""
        return not self.prompt.startswith(("system: ", "user: ", "assistant: ", "tool: "))

    @property
    def has_images(self) -> bool:
        return bool(find_marks(self.prompt).images)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationResults:
    """What an evaluation found."""

    kind: AnswerKind
    """What kind of answers the models gave."""
    primary: EvaluationMetric
    """The metric that decides."""
    row_metric: EvaluationMetric
    """The metric that scores each row alone."""
    verdict: str
    is_success: bool | None
    """None if there is no clear difference."""
    caution: str
    """What many looks mean, if several metrics were compared."""
    results: list[MetricResult]
    rows: list[RowPair]
    """In the order of the data."""
    overlap: str
    """How many rows occur in the training data, in a sentence; empty if none do."""
    clean_verdict: str
    """The verdict on the other rows; empty if there are none, or if no row occurs there."""

    def sort_rows(self, order: RowOrder) -> list[RowPair]:
        """Return the rows in an order; rows that compare equal stay in the order of the data."""
        return sorted(self.rows, key=_KEYS[order])


_KEYS: Mapping[RowOrder, Callable[[RowPair], float]] = {
    # Rows without a score come last.
    "worst": lambda pair: math.inf if pair.quality is None else pair.quality,
    "gained": lambda pair: -pair.gain,
    "lost": lambda pair: pair.gain,
    "surprise": lambda pair: -pair.surprise,
    "row": lambda _pair: 0.0,
}


def load(db: Session, evaluation: Evaluation) -> EvaluationResults | None:
    """Return what an evaluation found; None until both models have answered."""
    base, tuned = (
        db.get_one(AnswerSet, set_id) for set_id in (evaluation.base_id, evaluation.tuned_id)
    )
    if base.finished_at is None or tuned.finished_at is None:
        return None
    key = f"{base.key} {tuned.key}"
    if key not in _CACHE:
        first, second = (answer_sets.load_answers(db, one.id or 0) for one in (base, tuned))
        _CACHE[key] = compute(first, second, tuned.answers)
        while len(_CACHE) > _MAX_CACHED:
            _CACHE.pop(next(iter(_CACHE)), None)
    return _CACHE[key]


def load_newest(db: Session, run_id: int) -> EvaluationResults | None:
    """Return what the newest finished evaluation of a run found on rows that it held out."""
    for evaluation in evaluations.list_for_run(db, run_id):
        if evaluation.is_held_out and (results := load(db, evaluation)):
            return results
    return None


_CACHE: dict[str, EvaluationResults] = {}
"""Results by the keys of their answers, which never change; resampling them takes a while."""
_MAX_CACHED = 16


def compute(
    base: Sequence[Answer], tuned: Sequence[Answer], kind: AnswerKind = "text"
) -> EvaluationResults:
    """Compare the answers of two models to the same rows."""
    first, second = (
        [answer_sets.to_row(answer, kind) for answer in answers] for answers in (base, tuned)
    )
    primary = metrics.primary(second)
    row_metric = metrics.for_single_rows(primary, second)
    results = [
        result
        for metric in metrics.for_rows(second)
        if (result := _compare(metric, first, second)) is not None
    ]
    decisive = next((result for result in results if result.metric.key == primary.key), None)
    seen = {answer.position for answer in tuned if answer.overlap}
    clean = [[row for row in side if row.position not in seen] for side in (first, second)]
    return EvaluationResults(
        kind=kind,
        primary=primary,
        row_metric=row_metric,
        verdict=_verdict(decisive),
        is_success=decisive.is_better if decisive else None,
        caution=verdicts.count_looks(len(results)),
        overlap=_describe_overlap(len(seen), len(second)),
        clean_verdict=_verdict(_compare(primary, *clean)) if seen and all(clean) else "",
        results=results,
        rows=_pair_rows(row_metric, {answer.position: answer for answer in tuned}, first, second),
    )


def _verdict(result: MetricResult | None) -> str:
    if result is None:
        return "No row could be scored."
    return verdicts.verdict(result.metric, result.base, result.tuned, result.comparison)


def _describe_overlap(seen: int, total: int) -> str:
    if not seen:
        return ""
    rows = f"{seen:,} of {total:,} rows" if total > 1 else "The row"
    return f"{rows} can also be found in the training data, in whole or in part."


def _compare(
    metric: EvaluationMetric, first: Sequence[AnsweredRow], second: Sequence[AnsweredRow]
) -> MetricResult | None:
    base, tuned = (statistics.measure(metric, rows) for rows in (first, second))
    comparison = statistics.compare(metric, first, second)
    if base is None or tuned is None or comparison is None:
        return None
    return MetricResult(
        metric=metric,
        base=base,
        tuned=tuned,
        comparison=comparison,
        signature=metric.signature(second),
        is_better=verdicts.is_better(metric, comparison),
    )


def _pair_rows(
    metric: EvaluationMetric,
    answers: Mapping[int, Answer],
    first: Sequence[AnsweredRow],
    second: Sequence[AnsweredRow],
) -> list[RowPair]:
    base_rows = {row.position: row for row in first}
    pairs = ((base_rows[row.position], row) for row in second if row.position in base_rows)
    return [_pair(metric, answers[tuned.position], base, tuned) for base, tuned in pairs]


def _pair(
    metric: EvaluationMetric, answer: Answer, base: AnsweredRow, tuned: AnsweredRow
) -> RowPair:
    scores = [_score(metric, row) for row in (base, tuned)]
    sign = -1 if metric.better == "lower" else 1
    before, after = (None if score is None else sign * score for score in scores)
    return RowPair(
        number=answer.number,
        prompt=tuned.prompt,
        reference=tuned.reference,
        base=base,
        tuned=tuned,
        base_score=scores[0],
        tuned_score=scores[1],
        quality=after,
        gain=0.0 if before is None or after is None else after - before,
        surprise=(tuned.nll or 0.0) / max(tuned.nll_tokens, 1),
        overlap=answer.overlap,
    )


def _score(metric: EvaluationMetric, row: AnsweredRow) -> float | None:
    """Return the value of a metric for one row alone."""
    counted = metric.row_statistics(row)
    # Where nothing is to be found and nothing was, there is nothing to score.
    return metric.aggregate(counted) if counted is not None and any(counted) else None
