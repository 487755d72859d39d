"""What holds for the scores of any answers."""

import math
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from studio.evaluation import statistics, text_scores
from studio.evaluation.evaluation_metric import EvaluationMetric
from studio.evaluation.metrics import EVALUATION_METRICS
from studio.evaluation.rows import AnsweredRow
from tests.support.answered_rows import answered

METRICS = st.sampled_from([*EVALUATION_METRICS.values()])
TEXTS = st.one_of(
    st.sampled_from(["yes", "no", "the answer is 42", "天气很好", '{"a": 1}', "a b c d e f", ""]),
    st.text(max_size=20),
)
BOUNDED = ("token_f1", "rouge_l")


@st.composite
def any_rows(draw: st.DrawFn) -> list[AnsweredRow]:
    count = draw(st.integers(0, 8))
    return [
        answered(
            draw(TEXTS),
            draw(TEXTS),
            position=position,
            nll=draw(st.one_of(st.none(), st.floats(0, 100))),
            nll_tokens=draw(st.integers(0, 5)),
        )
        for position in range(count)
    ]


@settings(max_examples=15)
@given(METRICS, any_rows(), st.randoms(use_true_random=False))
def test_interval_contains_value_in_any_order_of_rows(
    metric: EvaluationMetric, rows: list[AnsweredRow], random: Random
) -> None:
    figure = statistics.measure(metric, rows)
    shuffled = [*rows]
    random.shuffle(shuffled)

    assert figure == statistics.measure(metric, shuffled)
    assert figure is None or figure.low <= figure.value <= figure.high
    assert figure is None or (0 < figure.n <= len(rows) and math.isfinite(figure.high))


@settings(max_examples=15)
@given(METRICS, any_rows(), any_rows())
def test_swapped_models_differ_the_other_way(
    metric: EvaluationMetric, first: list[AnsweredRow], second: list[AnsweredRow]
) -> None:
    made, swapped = (
        statistics.compare(metric, first, second),
        statistics.compare(metric, second, first),
    )

    if made is None or swapped is None:
        assert made is swapped
        return
    assert made.difference == -swapped.difference
    assert math.isclose(made.low, -swapped.high, abs_tol=1e-9)
    assert made.low <= made.difference <= made.high
    assert (made.p, made.only_first, made.n) == (swapped.p, swapped.only_second, swapped.n)
    assert made.is_clear == swapped.is_clear


@given(TEXTS, TEXTS)
def test_scores_of_any_text_are_shares(answer: str, reference: str) -> None:
    for key in BOUNDED:
        statistics_of_row = EVALUATION_METRICS[key].row_statistics(answered(answer, reference))
        assert statistics_of_row is None or 0 <= statistics_of_row[0] <= 1


@given(TEXTS.filter(str.strip))
def test_reference_is_its_own_right_answer(text: str) -> None:
    row = answered(text, text)

    for key in ("exact", "exact_relaxed", "contains", "number", "token_f1", "rouge_l"):
        assert EVALUATION_METRICS[key].row_statistics(row) in {(1.0, 1.0), None}


@given(st.text("abc", max_size=12), st.text("abc", max_size=12))
def test_common_subsequence_is_that_of_the_table(first: str, second: str) -> None:
    above = [0] * (len(second) + 1)
    for one in first:
        row = [0]
        for at, other in enumerate(second):
            row.append(above[at] + 1 if one == other else max(above[at + 1], row[at]))
        above = row

    assert text_scores.common_subsequence(first, second) == above[-1]
