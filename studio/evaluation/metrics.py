"""All metrics of evaluations, which of them apply to which rows, and which one decides."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from studio.evaluation import reading_scores, text_scores
from studio.evaluation.evaluation_metric import EvaluationMetric
from studio.evaluation.reading_metrics import READING_METRICS
from studio.evaluation.rows import AnsweredRow
from studio.evaluation.text_metrics import TEXT_METRICS
from studio.evaluation.words import split_words

_SHORT_WORDS = 5
"""References with at most so many words are short: an answer can be expected to equal them."""

MAX_LABELS = 100
"""The F1 score of each of more labels says little, and takes long to resample."""

_METRICS = (*TEXT_METRICS, *READING_METRICS)

EVALUATION_METRICS: Mapping[str, EvaluationMetric] = {metric.key: metric for metric in _METRICS}
"""All metrics by key, in display order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _References:
    """What the references of some rows have in common."""

    count: int
    words: float
    """Their median length in words."""
    has_json: bool
    has_numbers: bool
    """Whether at least half hold a number."""
    has_results: bool
    """Whether at least half have their result after `####`."""
    has_loss: bool
    has_rankings: bool
    """Whether at least half are the better one of two answers."""

    @property
    def is_short(self) -> bool:
        return self.words <= _SHORT_WORDS and not self.has_json


def _describe(rows: Sequence[AnsweredRow]) -> _References:
    texts = [row.reference for row in rows if row.has_reference]
    return _References(
        count=len(texts),
        words=median(len(split_words(text)) for text in texts) if texts else 0,
        has_json=_is_most(text_scores.parse_json(text) is not None for text in texts),
        has_numbers=_is_half(text_scores.last_number(text) is not None for text in texts),
        has_results=_is_half(text_scores.FINAL_ANSWER in text for text in texts),
        has_loss=any(text_scores.loss(row) for row in rows),
        has_rankings=_is_half(text_scores.ranking(row) is not None for row in rows),
    )


_SUITS: Mapping[str, Callable[[_References], bool]] = {
    "contains": lambda references: references.is_short,
    "number": lambda references: (
        references.has_results or (references.has_numbers and references.is_short)
    ),
    "chrf": lambda _references: text_scores.has_sacrebleu(),
    "bleu": lambda references: (
        text_scores.has_sacrebleu() and references.words >= text_scores.BLEU_ORDER
    ),
    "json_valid": lambda references: references.has_json,
    "json_schema": lambda references: references.has_json,
    "json_equal": lambda references: references.has_json,
    "loss": lambda references: references.has_loss,
    "bits_per_byte": lambda references: references.has_loss,
    "preference_margin": lambda references: references.has_rankings,
    "ranking": lambda references: references.has_rankings,
}
"""Which references a metric is for; others are for all."""


def for_rows(rows: Sequence[AnsweredRow]) -> list[EvaluationMetric]:
    """Return the metrics that apply to rows, in display order; none without rows."""
    if not rows:
        return []
    if rows[0].kind != "text":
        return [metric for metric in READING_METRICS if _reads(metric, rows)]
    references = _describe(rows)
    return [metric for metric in TEXT_METRICS if _applies(metric, references)]


def _reads(metric: EvaluationMetric, rows: Sequence[AnsweredRow]) -> bool:
    """Whether a metric of models that read a text applies to what they say of some rows."""
    if metric.kind != rows[0].kind:
        return False
    if metric.key in _FOR_SEVERAL and not _has_several(rows):
        return False
    if metric.key == "macro_f1" and len(reading_scores.list_labels(rows)) > MAX_LABELS:
        return False
    prepared = metric.over(rows)
    return any(prepared.row_statistics(row) is not None for row in rows)


_FOR_SEVERAL = ("micro_f1", "scaled_error")
"""Metrics of texts that may have several labels or numbers; of others, they say nothing new."""


def _has_several(rows: Sequence[AnsweredRow]) -> bool:
    """Whether some texts have several labels or numbers, or none."""
    return any(len(row.reference_lines) != 1 for row in rows)


def _applies(metric: EvaluationMetric, references: _References) -> bool:
    if metric.needs_reference and not references.count:
        return False
    suits = _SUITS.get(metric.key)
    return suits is None or suits(references)


def primary(rows: Sequence[AnsweredRow]) -> EvaluationMetric:
    """Return the metric that decides which of two models is better on rows.

    Without references, no metric knows right answers: then it is how many repeat themselves.
    """
    if rows and rows[0].kind != "text":
        return _primary_of_kind(rows)
    return _primary_of_texts(_describe(rows))


_PRIMARY: Mapping[str, Callable[[_References], bool]] = {
    "repeats": lambda references: not references.count,
    "preference_margin": lambda references: references.has_rankings,
    "json_equal": lambda references: references.has_json,
    "number": lambda references: references.has_results,
    "exact": lambda references: references.is_short,
    "loss": lambda references: references.has_loss,
    "chrf": lambda _references: text_scores.has_sacrebleu(),
    "rouge_l": lambda _references: True,
}
"""The references for which each metric decides; the first one that is for them does."""


def _primary_of_texts(references: _References) -> EvaluationMetric:
    key = next(key for key, suits in _PRIMARY.items() if suits(references))
    return EVALUATION_METRICS[key]


def _primary_of_kind(rows: Sequence[AnsweredRow]) -> EvaluationMetric:
    kind = rows[0].kind
    if kind == "label" and _has_several(rows):
        return EVALUATION_METRICS["micro_f1"]
    return next(metric for metric in READING_METRICS if metric.kind == kind)


def are_short(references: Iterable[str]) -> bool:
    """Whether references are so short that an answer can be expected to equal them."""
    return median(len(split_words(text)) for text in references) <= _SHORT_WORDS


def for_single_rows(primary: EvaluationMetric, rows: Sequence[AnsweredRow]) -> EvaluationMetric:
    """Return what scores each of the rows alone where a metric decides: R² needs many."""
    if primary.key != "r2":
        return primary
    return EVALUATION_METRICS["scaled_error" if _has_several(rows) else "mae"].over(rows)


def missing_reason(metric: EvaluationMetric) -> str:
    """Return why a metric cannot be computed on this machine; empty if it can."""
    if metric.key in {"chrf", "bleu"} and not text_scores.has_sacrebleu():
        return f"{metric.title} needs the package sacrebleu: install it, then score again."
    return ""


def _is_most(facts: Iterable[bool]) -> bool:
    return _mean(facts) > 1 / 2


def _is_half(facts: Iterable[bool]) -> bool:
    return _mean(facts) >= 1 / 2


def _mean(facts: Iterable[bool]) -> float:
    listed = list(facts)
    return sum(listed) / len(listed) if listed else 0.0
