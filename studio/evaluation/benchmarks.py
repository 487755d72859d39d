"""What lm-eval measures: public test suites, rows of a dataset, and the metrics of both."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from studio.evaluation.evaluation_metric import Metric
from studio.evaluation.metrics import EVALUATION_METRICS
from studio.evaluation.text_scores import Statistics, share

DEFAULT_ROWS, MAX_ROWS = 100, 1000


@dataclass(frozen=True, slots=True)
class HarnessMetric:
    """A metric as lm-eval calls it."""

    name: str
    """Its name and the filter of the answers: `acc_norm,none`."""
    metric: Metric
    count: Callable[[Any], Statistics] = share
    """Returns what a row contributes, from lm-eval's value of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """A public test suite, which lm-eval downloads."""

    name: str
    """What lm-eval calls it."""
    title: str
    note: str
    metrics: Sequence[HarnessMetric]
    """The first decides."""
    parts: int = 1
    """How many tasks it consists of: each is asked equally many rows."""

    def rows_per_part(self, rows: int) -> int:
        """Return how many rows to ask of each part, for at least so many of all."""
        return math.ceil(rows / self.parts)


def _listed(value: Sequence[bool]) -> Statistics:
    return float(sum(value)), float(len(value))


def _rolling_bits(value: Sequence[float]) -> Statistics:
    likelihood, size = value
    return -likelihood / math.log(2), float(size)


_RIGHT = Metric(
    key="accuracy",
    title="Accuracy",
    unit="share",
    note="Questions whose right answer is likeliest to the model.",
    phrase="{value} right answers",
    is_binary=True,
)
_RIGHT_FOR_LENGTH = Metric(
    key="accuracy_by_length",
    title="Accuracy for the length",
    unit="share",
    note="The same with likelihoods divided by the lengths of the answers: long ones are not at a "
    "disadvantage.",
    phrase="{value} right answers",
    is_binary=True,
)
_TRUE = Metric(
    key="truthful",
    title="Truthfulness",
    unit="share",
    note="How much of the likelihood of all answers the true ones have.",
    phrase="{value} of the likelihood on true answers",
)
_MARKED = Metric(
    key="marked_number",
    title="Right number after ####",
    unit="share",
    note="Right results that are written as in the examples: shows whether only the form is wrong.",
    phrase="{value} right numbers after ####",
    is_binary=True,
)
_PROMPTS_FOLLOWED = Metric(
    key="prompts_followed",
    title="Prompts followed",
    unit="share",
    note="Prompts of which all instructions are followed to the letter.",
    phrase="{value} prompts followed",
    is_binary=True,
)
_INSTRUCTIONS_FOLLOWED = Metric(
    key="instructions_followed",
    title="Instructions followed",
    unit="share",
    note="Single instructions that are followed: a prompt has one to three.",
    phrase="{value} instructions followed",
)

_ACC = HarnessMetric("acc,none", _RIGHT)
_ACC_NORM = HarnessMetric("acc_norm,none", _RIGHT_FOR_LENGTH)
_BITS = HarnessMetric("bits_per_byte,none", EVALUATION_METRICS["bits_per_byte"], _rolling_bits)

_SUITES = (
    Suite(
        name="gsm8k",
        title="GSM8K",
        note="Word problems of primary school, with five solved examples.",
        metrics=(
            HarnessMetric("exact_match,flexible-extract", EVALUATION_METRICS["number"]),
            HarnessMetric("exact_match,strict-match", _MARKED),
        ),
    ),
    Suite(
        name="hellaswag",
        title="HellaSwag",
        note="Everyday scenes to be continued: four choices.",
        metrics=(_ACC_NORM, _ACC),
    ),
    Suite(
        name="arc_easy",
        title="ARC Easy",
        note="Science questions of school exams: about four choices.",
        metrics=(_ACC, _ACC_NORM),
    ),
    Suite(
        name="arc_challenge",
        title="ARC Challenge",
        note="The harder science questions of school exams.",
        metrics=(_ACC_NORM, _ACC),
    ),
    Suite(
        name="mmlu",
        title="MMLU",
        note="Exam questions from 57 subjects, equally many of each: four choices.",
        metrics=(_ACC,),
        parts=57,
    ),
    Suite(
        name="ifeval",
        title="IFEval",
        note="Instructions whose observance a program can check, such as a number of words.",
        metrics=(
            HarnessMetric("prompt_level_strict_acc,none", _PROMPTS_FOLLOWED),
            HarnessMetric("inst_level_strict_acc,none", _INSTRUCTIONS_FOLLOWED, _listed),
        ),
    ),
    Suite(
        name="truthfulqa_mc2",
        title="TruthfulQA",
        note="Questions that many people answer wrongly: true and false answers to choose from.",
        metrics=(HarnessMetric("acc,none", _TRUE),),
    ),
    Suite(
        name="winogrande",
        title="WinoGrande",
        note="Sentences with a blank that needs common sense: two choices.",
        metrics=(_ACC,),
    ),
    Suite(
        name="piqa",
        title="PIQA",
        note="How to do things in the physical world: two choices.",
        metrics=(_ACC, _ACC_NORM),
    ),
    Suite(
        name="wikitext",
        title="WikiText-2",
        note="Articles of Wikipedia: how well general text is predicted.",
        metrics=(_BITS,),
    ),
)

SUITES: Mapping[str, Suite] = {suite.name: suite for suite in _SUITES}
"""The public suites that are offered, by name, in display order."""

RowTask = Literal["answers", "texts"]
"""What a model does with the rows of a dataset: write short answers, or read texts."""

ROW_METRICS: Mapping[RowTask, HarnessMetric] = {
    "answers": HarnessMetric("exact_match,strip", EVALUATION_METRICS["exact"]),
    "texts": _BITS,
}
"""The metric of each."""

METRICS: Mapping[str, Metric] = {
    one.metric.key: one.metric
    for metrics in (*(suite.metrics for suite in _SUITES), ROW_METRICS.values())
    for one in metrics
}
"""All metrics of benchmarks by key, in display order."""
