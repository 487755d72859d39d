"""The metrics of an evaluation, each declared once.

All work alike: each row contributes statistics, these are summed, and the sums give the value. So
an interval by resampling rows is as simple for BLEU of a corpus as for a mean.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from statistics import median
from typing import Literal

from studio.evaluation import text_scores
from studio.evaluation.rows import AnsweredRow
from studio.evaluation.words import split_words

Unit = Literal["share", "score", "nats", "bits", "tokens"]

UNIT_DIGITS: Mapping[Unit, int] = {"score": 1, "nats": 3, "bits": 3, "tokens": 1}
"""Digits after the decimal point; a share is a percentage with three significant digits."""

_SHORT_WORDS = 5
"""References with at most so many words are short: an answer can be expected to equal them."""

_VERSION = 1
"""Raise it when a change makes scores differ from earlier ones; signatures show it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationMetric:
    """What a metric means, and how it is computed."""

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
    needs_reference: bool = True
    row_statistics: Callable[[AnsweredRow], tuple[float, ...] | None]
    """What a row contributes; None if it does not count."""
    aggregate: Callable[[Sequence[float]], float] = text_scores.ratio
    """Returns the value from the sums of the rows' statistics; NaN if there is none."""
    signature: Callable[[Sequence[AnsweredRow]], str]
    """Returns how exactly it is computed: only values with equal signatures compare."""


def _signature(rules: str, _rows: Sequence[AnsweredRow]) -> str:
    return f"{rules}|v:{_VERSION}"


def _signed(rules: str) -> Callable[[Sequence[AnsweredRow]], str]:
    return partial(_signature, rules)


def _chrf_signature(_rows: Sequence[AnsweredRow]) -> str:
    """Return the signature that sacrebleu writes."""
    return f"nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:{_sacrebleu_version()}"


def _bleu_signature(rows: Sequence[AnsweredRow]) -> str:
    """Return the signature that sacrebleu writes, with all tokenizers that the rows need."""
    names = {text_scores.bleu_tokenizer(row.reference) for row in rows if row.has_reference}
    tokenizers = "+".join(sorted(names)) or "13a"
    return f"nrefs:1|case:mixed|eff:no|tok:{tokenizers}|smooth:exp|version:{_sacrebleu_version()}"


def _sacrebleu_version() -> str:
    return version("sacrebleu") if text_scores.has_sacrebleu() else "none"


_RELAXED = "norm:nfkc|case:no|punct:no|articles:no|space:one"

_METRICS = (
    EvaluationMetric(
        key="exact",
        title="Exact match",
        unit="share",
        note="Answers that equal the reference, apart from spaces: for labels and short facts.",
        phrase="{value} exact answers",
        is_binary=True,
        row_statistics=text_scores.exact,
        signature=_signed("norm:nfc|case:yes|punct:yes|space:one"),
    ),
    EvaluationMetric(
        key="exact_relaxed",
        title="Relaxed match",
        unit="share",
        note="Exact match that ignores case, punctuation, articles and extra spaces: shows whether "
        "only the form is wrong.",
        phrase="{value} answers with the right words",
        is_binary=True,
        row_statistics=text_scores.exact_relaxed,
        signature=_signed(_RELAXED),
    ),
    EvaluationMetric(
        key="contains",
        title="Contains the reference",
        unit="share",
        note="Answers in which the words of the reference appear: for models that wrap a right "
        "answer in a sentence.",
        phrase="{value} answers with the reference in them",
        is_binary=True,
        row_statistics=text_scores.contains,
        signature=_signed(_RELAXED),
    ),
    EvaluationMetric(
        key="number",
        title="Right number",
        unit="share",
        note="Answers whose last number equals that of the reference, or the number after ####: "
        "for calculations.",
        phrase="{value} right numbers",
        is_binary=True,
        row_statistics=text_scores.number,
        signature=_signed("take:last|after:####|strip:,$%|compare:decimal"),
    ),
    EvaluationMetric(
        key="token_f1",
        title="Word F1",
        unit="share",
        note="Words that answer and reference share, in any order: for short answers with several "
        "right wordings.",
        phrase="{value} word F1",
        row_statistics=text_scores.token_f1,
        signature=_signed(f"{_RELAXED}|mean:rows"),
    ),
    EvaluationMetric(
        key="rouge_l",
        title="ROUGE-L",
        unit="share",
        note="Longest sequence of words that answer and reference share: for summaries.",
        phrase="{value} ROUGE-L",
        row_statistics=text_scores.rouge_l,
        signature=_signed("norm:nfkc|case:no|punct:no|unspaced:char|beta:1|mean:rows"),
    ),
    EvaluationMetric(
        key="chrf",
        title="chrF",
        unit="score",
        note="Runs of characters that answers and references share: for answers of any length and "
        "language.",
        phrase="{value} chrF",
        row_statistics=text_scores.chrf,
        aggregate=text_scores.chrf_score,
        signature=_chrf_signature,
    ),
    EvaluationMetric(
        key="bleu",
        title="BLEU",
        unit="score",
        note="Runs of words that answers and references share: for translations, to compare with "
        "published figures.",
        phrase="{value} BLEU",
        row_statistics=text_scores.bleu,
        aggregate=text_scores.bleu_score,
        signature=_bleu_signature,
    ),
    EvaluationMetric(
        key="json_valid",
        title="Valid JSON",
        unit="share",
        note="Answers that are nothing but a JSON object or array, where the reference is one.",
        phrase="{value} valid JSON",
        is_binary=True,
        row_statistics=text_scores.json_valid,
        signature=_signed("json:container|fences:no"),
    ),
    EvaluationMetric(
        key="json_equal",
        title="Same JSON values",
        unit="share",
        note="Answers with the same JSON values as the reference, however they are laid out: for "
        "extraction.",
        phrase="{value} answers with the same JSON values",
        is_binary=True,
        row_statistics=text_scores.json_equal,
        signature=_signed("json:container|fences:no|keys:any order|numbers:decimal"),
    ),
    EvaluationMetric(
        key="loss",
        title="Loss on references",
        unit="nats",
        better="lower",
        note="How surprising the references are to the model, per token: compares models with the "
        "same tokenizer.",
        phrase="{value} nats/token",
        row_statistics=text_scores.loss,
        signature=_signed("over:reference tokens|log:e"),
    ),
    EvaluationMetric(
        key="bits_per_byte",
        title="Bits per byte",
        unit="bits",
        better="lower",
        note="How surprising the references are to the model, per byte: compares models with "
        "different tokenizers.",
        phrase="{value} bits/byte",
        row_statistics=text_scores.bits_per_byte,
        signature=_signed("over:reference bytes utf-8|log:2"),
    ),
    EvaluationMetric(
        key="cut_off",
        title="Cut off",
        unit="share",
        better="lower",
        note="Answers that reached the maximum length: if there are many, other scores suffer.",
        phrase="{value} cut off",
        is_binary=True,
        needs_reference=False,
        row_statistics=text_scores.cut_off,
        signature=_signed("reason:length"),
    ),
    EvaluationMetric(
        key="empty",
        title="Empty answers",
        unit="share",
        better="lower",
        note="Answers without text: often a sign of a wrong chat template.",
        phrase="{value} empty answers",
        is_binary=True,
        needs_reference=False,
        row_statistics=text_scores.empty,
        signature=_signed("space:no"),
    ),
    EvaluationMetric(
        key="repeats",
        title="Repetitive answers",
        unit="share",
        better="lower",
        note="Answers that end by repeating the same words: often a sign of too much training.",
        phrase="{value} repetitive answers",
        is_binary=True,
        needs_reference=False,
        row_statistics=text_scores.repeats,
        signature=_signed("loop:80 characters|times:5"),
    ),
    EvaluationMetric(
        key="answer_tokens",
        title="Answer length",
        unit="tokens",
        better="neither",
        note="Mean length of an answer: a jump explains changes of other scores.",
        phrase="{value} tokens per answer",
        needs_reference=False,
        row_statistics=text_scores.answer_tokens,
        signature=_signed("mean:rows"),
    ),
)

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
    "json_equal": lambda references: references.has_json,
    "loss": lambda references: references.has_loss,
    "bits_per_byte": lambda references: references.has_loss,
}
"""Which references a metric is for; others are for all."""


def for_rows(rows: Sequence[AnsweredRow]) -> list[EvaluationMetric]:
    """Return the metrics that apply to rows, in display order; none without rows."""
    if not rows:
        return []
    references = _describe(rows)
    return [metric for metric in _METRICS if _applies(metric, references)]


def _applies(metric: EvaluationMetric, references: _References) -> bool:
    if metric.needs_reference and not references.count:
        return False
    suits = _SUITS.get(metric.key)
    return suits is None or suits(references)


def primary(rows: Sequence[AnsweredRow]) -> EvaluationMetric:
    """Return the metric that decides which of two models is better on rows.

    Without references, no metric knows right answers: then it is how many repeat themselves.
    """
    references = _describe(rows)
    if not references.count:
        return EVALUATION_METRICS["repeats"]
    if references.has_json:
        return EVALUATION_METRICS["json_equal"]
    if references.has_results:
        return EVALUATION_METRICS["number"]
    if references.is_short:
        return EVALUATION_METRICS["exact"]
    if references.has_loss:
        return EVALUATION_METRICS["loss"]
    return EVALUATION_METRICS["chrf" if text_scores.has_sacrebleu() else "rouge_l"]


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
