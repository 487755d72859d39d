"""What comparisons show, in words."""

import pytest

from studio.evaluation import statistics, verdicts
from studio.evaluation.metrics import EVALUATION_METRICS
from studio.evaluation.rows import AnsweredRow
from tests.support.answered_rows import answered, right_at

EXACT, LOSS, REPEATS, LENGTH = (
    EVALUATION_METRICS[key] for key in ("exact", "loss", "repeats", "answer_tokens")
)


def judge(key: str, first: list[AnsweredRow], second: list[AnsweredRow]) -> str:
    metric = EVALUATION_METRICS[key]
    before, after = statistics.measure(metric, first), statistics.measure(metric, second)
    assert before is not None
    assert after is not None
    return verdicts.verdict(metric, before, after, statistics.compare(metric, first, second))


def with_loss(loss: float, n: int = 20) -> list[AnsweredRow]:
    return [
        answered("x y", "y", position=at, nll=loss + at % 3 / 10, nll_tokens=1) for at in range(n)
    ]


def of_length(words: int) -> list[AnsweredRow]:
    return [answered("x " * words, position=at) for at in range(9)]


@pytest.mark.parametrize(
    ("key", "first", "second", "sentence"),
    [
        (
            "exact",
            right_at(range(8), 64),
            right_at(range(37), 64),
            "Better: 12.5 % → 57.8 % exact answers on 64 rows (by 33 to 58 points).",
        ),
        (
            "exact",
            right_at(range(37), 64),
            right_at(range(8), 64),
            "Worse: 57.8 % → 12.5 % exact answers on 64 rows (by 33 to 58 points).",
        ),
        (
            "loss",
            with_loss(2.0),
            with_loss(1.5),
            "Better: 2.095 → 1.595 nats/token on 20 rows (by 0.500 to 0.500).",
        ),
        (
            "answer_tokens",
            of_length(4),
            of_length(2),
            "Changed: 4.0 → 2.0 tokens per answer on 9 rows (by 2.0 to 2.0).",
        ),
        (
            "exact",
            right_at(range(4), 9),
            right_at(range(5), 9),
            (
                "No clear difference on 9 rows: 44.4 % and 55.6 % exact answers. "
                "About 54 rows would do."
            ),
        ),
        (
            "exact",
            right_at([1], 9),
            right_at([1], 9),
            "No clear difference on 9 rows: 11.1 % and 11.1 % exact answers.",
        ),
        ("exact", right_at([0], 1), right_at([], 1), "One row is too few for a verdict."),
        (
            "exact",
            right_at([1], 9),
            right_at([1], 8),
            (
                "No clear difference on 8 rows: 12.5 % and 12.5 % exact answers. "
                "1 row that counts for one model only is left out."
            ),
        ),
        (
            "exact",
            right_at([1], 9),
            right_at([1], 11),
            (
                "No clear difference on 9 rows: 11.1 % and 11.1 % exact answers. "
                "2 rows that count for one model only are left out."
            ),
        ),
        (
            "exact",
            right_at([], 2),
            right_at([], 5)[2:],
            "No row has answers that count from both models, so there is no verdict.",
        ),
    ],
)
def test_verdict_says_what_rows_show(
    key: str, first: list[AnsweredRow], second: list[AnsweredRow], sentence: str
) -> None:
    assert judge(key, first, second) == sentence


def test_fewer_is_better_where_the_metric_says_so() -> None:
    looping = [answered("no" * 40, position=at) for at in range(9)]
    fine = [answered("no", position=at) for at in range(9)]

    made = statistics.compare(REPEATS, looping, fine)

    assert made is not None
    assert verdicts.direction(REPEATS, made) == "better"


def test_unclear_difference_has_no_direction() -> None:
    made = statistics.compare(LENGTH, of_length(2)[:3], of_length(3)[:3])

    assert made is not None
    assert verdicts.direction(LENGTH, made) == "unclear"


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("exact", 0.5, "50 % exact answers"),
        ("loss", 1.23456, "1.235 nats/token"),
        ("loss", -0.5, "\N{MINUS SIGN}0.500 nats/token"),
        ("bleu", 12.345, "12.3 BLEU"),
        ("bits_per_byte", 0.9, "0.900 bits/byte"),
    ],
)
def test_values_are_written_with_what_they_are(key: str, value: float, text: str) -> None:
    assert verdicts.write(EVALUATION_METRICS[key], value) == text


@pytest.mark.parametrize(
    ("looks", "sentence"),
    [
        (0, ""),
        (1, ""),
        (12, "Of 12 metrics looked at, one such difference may be chance."),
        (40, "Of 40 metrics looked at, 2 such differences may be chance."),
    ],
)
def test_number_of_looks_is_said(looks: int, sentence: str) -> None:
    assert verdicts.count_looks(looks) == sentence


@pytest.mark.parametrize(
    ("looks", "sentence"),
    [
        (5, "Of 5 checkpoints looked at, one such difference may be chance."),
        (60, "Of 60 checkpoints looked at, 3 such differences may be chance."),
    ],
)
def test_number_of_checkpoints_is_said(looks: int, sentence: str) -> None:
    assert verdicts.count_looks(looks, "checkpoints") == sentence
