"""How sure scores and differences are."""

import math
import random

import pytest

from studio.evaluation import resampling, statistics
from studio.evaluation.metrics import EVALUATION_METRICS
from studio.evaluation.rows import AnsweredRow
from tests.support.answered_rows import answered, answered_pairs, right_at

EXACT, LOSS, LENGTH = (EVALUATION_METRICS[key] for key in ("exact", "loss", "answer_tokens"))


def with_losses(*losses: float) -> list[AnsweredRow]:
    return [
        answered("x", "y", position=at, nll=loss, nll_tokens=1) for at, loss in enumerate(losses)
    ]


@pytest.mark.parametrize(
    ("count", "n", "low", "high"),
    [
        (5, 8, 0.306, 0.863),
        (60, 100, 0.502, 0.691),
        (120, 200, 0.531, 0.665),
        (600, 1000, 0.569, 0.630),
        (0, 10, 0.0, 0.278),
        (10, 10, 0.722, 1.0),
    ],
)
def test_wilson_interval_has_textbook_values(count: int, n: int, low: float, high: float) -> None:
    assert list(statistics.wilson(count, n)) == pytest.approx([low, high], abs=5e-4)


@pytest.mark.parametrize(
    ("only_first", "only_second", "p"),
    [(64, 46, 0.105), (5, 0, 0.0625), (6, 0, 0.03125), (1, 9, 0.0215), (4, 4, 1.0), (0, 0, 1.0)],
)
def test_mcnemar_has_textbook_values(only_first: int, only_second: int, p: float) -> None:
    assert statistics.mcnemar(only_first, only_second) == pytest.approx(p, abs=5e-4)


def test_mcnemar_of_very_many_rows_is_finite() -> None:
    assert statistics.mcnemar(50_000, 50_000) == 1.0
    assert 0 < statistics.mcnemar(50_500, 49_500) < 0.01


@pytest.mark.parametrize(("freedom", "t"), [(2, 4.303), (5, 2.571), (30, 2.042), (10_000, 1.960)])
def test_students_t_has_textbook_values(freedom: int, t: float) -> None:
    assert resampling.student_t(freedom) == pytest.approx(t, rel=0.01)


def test_share_has_wilson_interval() -> None:
    figure = statistics.measure(EXACT, right_at(range(5), 8))

    assert figure == statistics.Figure(5 / 8, *statistics.wilson(5, 8), 8)


def test_mean_has_interval_of_student() -> None:
    """Of normal values, the bootstrap's interval is the usual one: mean ± t · s / √n."""
    draw = random.Random(3)  # noqa: S311 -- a seeded draw
    losses = [draw.gauss(2, 0.5) for _ in range(40)]
    mean = sum(losses) / 40
    deviation = math.sqrt(sum((loss - mean) ** 2 for loss in losses) / 39)

    figure = statistics.measure(LOSS, with_losses(*losses))

    assert figure is not None
    assert figure.value == pytest.approx(mean)
    reach = 2.023 * deviation / math.sqrt(40)
    assert figure.low == pytest.approx(mean - reach, abs=0.1 * reach)
    assert figure.high == pytest.approx(mean + reach, abs=0.1 * reach)


def test_blocks_of_many_rows_scatter_as_rows_do() -> None:
    draw = random.Random(4)  # noqa: S311 -- a seeded draw
    losses = [draw.gauss(2, 0.5) for _ in range(10_001)]

    figure = statistics.measure(LOSS, with_losses(*losses))

    assert figure is not None
    assert figure.n == 10_001
    assert figure.high - figure.low == pytest.approx(2 * 1.96 * 0.5 / 100, rel=0.07)


def test_one_row_has_no_interval() -> None:
    assert statistics.measure(LOSS, with_losses(2.0)) == statistics.Figure(2.0, 2.0, 2.0, 1)


def test_rows_that_do_not_count_are_not_in_n() -> None:
    figure = statistics.measure(LOSS, with_losses(1.0, math.nan, 3.0, math.inf))

    assert figure is not None
    assert (figure.value, figure.n) == (2.0, 2)


@pytest.mark.parametrize("rows", [[], with_losses(math.nan)])
def test_nothing_to_measure_gives_nothing(rows: list[AnsweredRow]) -> None:
    assert statistics.measure(LOSS, rows) is None
    assert statistics.compare(LOSS, rows, rows) is None


def test_samples_without_a_value_do_not_count() -> None:
    """A sample may have only rows without labels, which have no F1 score."""
    macro_f1 = EVALUATION_METRICS["macro_f1"]
    first, second = answered_pairs([("", ""), ("a", "a")]), answered_pairs([("", ""), ("b", "a")])

    assert statistics.measure(macro_f1, first) == statistics.Figure(1.0, 1.0, 1.0, 2)
    same, other = (statistics.compare(macro_f1, first, each) for each in (first, second))
    assert same is not None
    assert (same.low, same.difference, same.high) == (0.0, 0.0, 0.0)
    assert other is not None
    assert (other.low, other.difference, other.high) == (-1.0, -1.0, -1.0)
    assert not other.is_clear


def test_difference_on_thousand_rows_is_not_clear() -> None:
    """The example of 64 rows against 46, whose p is 0.105."""
    first = right_at([*range(300), *range(400, 446)], 1000)
    second = right_at([*range(300), *range(300, 364)], 1000)

    made = statistics.compare(EXACT, first, second)

    assert made is not None
    assert made.difference == pytest.approx(0.018)
    assert [made.low, made.high] == pytest.approx([-0.003, 0.038], abs=2e-3)
    assert (made.only_first, made.only_second, made.n) == (46, 64, 1000)
    assert made.p == pytest.approx(0.105, abs=5e-4)
    assert not made.is_clear
    assert made.rows_needed == 1500


def test_large_difference_is_clear() -> None:
    made = statistics.compare(EXACT, right_at(range(8), 64), right_at(range(37), 64))

    assert made is not None
    assert made.is_clear
    assert made.rows_needed is None
    assert 0 < made.low < made.difference < made.high
    assert (made.first, made.second) == (8 / 64, 37 / 64)


@pytest.mark.parametrize(("differing", "is_clear"), [(5, False), (6, True)])
def test_difference_of_fewer_than_six_rows_is_not_clear(differing: int, *, is_clear: bool) -> None:
    before = with_losses(*[2.0] * differing)
    after = with_losses(*[1.0] * differing)

    made = statistics.compare(LOSS, before, after)

    assert made is not None
    assert (made.low, made.high) == (-1.0, -1.0)
    assert made.is_clear is is_clear
    assert made.rows_needed == (None if is_clear else 6)


def test_equal_models_need_no_more_rows() -> None:
    made = statistics.compare(EXACT, right_at([0, 1], 9), right_at([2, 3], 9))

    assert made is not None
    assert (made.difference, made.p, made.rows_needed) == (0, 1.0, None)


def test_tiny_difference_needs_too_many_rows() -> None:
    first, second = right_at(range(0, 600, 2), 1201), right_at(range(1, 602, 2), 1201)

    made = statistics.compare(EXACT, first, second)

    assert made is not None
    assert made.difference > 0
    assert made.rows_needed is None


def test_rows_of_one_side_are_left_out_and_counted() -> None:
    first, second = right_at([0], 10), right_at([0, 1], 12)[2:]

    made = statistics.compare(EXACT, first, second)

    assert made is not None
    assert (made.n, made.unpaired, made.difference) == (8, 4, 0)


def test_means_are_compared_without_p() -> None:
    made = statistics.compare(
        LENGTH, answered_pairs([("a b", "")] * 9), answered_pairs([("a b c", "")] * 9)
    )

    assert made is not None
    assert (made.p, made.only_first, made.only_second, made.difference) == (None, 0, 0, 1.0)
    assert made.is_clear


def test_intervals_do_not_change_between_calls() -> None:
    rows = with_losses(*(at % 7 for at in range(50)))

    assert statistics.measure(LOSS, rows) == statistics.measure(LOSS, rows)
