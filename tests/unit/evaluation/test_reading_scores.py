"""Scores of labels, numbers, steps, entities and preferences: values worked out by hand."""

import math
from collections.abc import Iterable
from dataclasses import replace

import pytest

from studio.evaluation import metrics, statistics
from studio.evaluation.metrics import (
    EVALUATION_METRICS,
    MAX_LABELS,
    for_rows,
    for_single_rows,
    primary,
)
from studio.evaluation.reading_scores import read_numbers, write_numbers
from studio.evaluation.rows import AnsweredRow, AnswerKind
from tests.support.answered_rows import answered_pairs


def said(
    kind: AnswerKind, pairs: Iterable[tuple[str, str]], confidence: float | None = None
) -> list[AnsweredRow]:
    """Return a row per answer and reference."""
    return [replace(row, kind=kind, confidence=confidence) for row in answered_pairs(pairs)]


def value(key: str, rows: list[AnsweredRow]) -> float:
    return statistics.value(EVALUATION_METRICS[key], rows)


LABELS = said("label", [("a", "a"), ("a", "a"), ("a", "b"), ("b", "b"), ("c", "a"), ("a", "a")])


def test_labels() -> None:
    assert value("right_label", LABELS) == pytest.approx(4 / 6)
    # a: 3 right, 4 given, 4 true; b: 1, 1, 2; c: 0, 1, 0.
    assert value("macro_f1", LABELS) == pytest.approx((6 / 8 + 2 / 3 + 0) / 3)
    assert value("micro_f1", LABELS) == pytest.approx(4 / 6)


def test_label_that_only_the_other_model_gives_does_not_lower_the_score() -> None:
    others = [replace(row, answer="z") for row in LABELS]
    compared = statistics.compare(EVALUATION_METRICS["macro_f1"], others, LABELS)

    assert compared is not None
    assert compared.second == value("macro_f1", LABELS)
    assert compared.first == 0


def test_sets_of_labels() -> None:
    rows = said("label", [("a\nb", "b\na"), ("a", "a\nb"), ("", ""), ("c", "")])

    assert value("right_label", rows) == 0.5
    assert value("micro_f1", rows) == pytest.approx(2 * 3 / (4 + 4))
    assert primary(rows).key == "micro_f1"
    assert primary(LABELS).key == "right_label"


def test_many_labels_have_no_mean_of_their_scores() -> None:
    rows = said("label", [(f"{number}", "0") for number in range(MAX_LABELS)])

    assert "macro_f1" in {one.key for one in for_rows(rows)}
    rows = said("label", [(f"{number}", "0") for number in range(MAX_LABELS + 1)])
    assert "macro_f1" not in {one.key for one in for_rows(rows)}


def test_entities_count_only_whole() -> None:
    both = "PER: Ann (1)\nLOC: New York (3-4)"
    rows = said(
        "entities",
        [(both, both), ("LOC: York (4)", "LOC: New York (3-4)"), ("", "")],
    )

    assert value("entity_precision", rows) == pytest.approx(2 / 3)
    assert value("entity_recall", rows) == pytest.approx(2 / 3)
    assert value("entity_f1", rows) == pytest.approx(2 / 3)


def test_nothing_found_has_scores_of_zero() -> None:
    rows = said("entities", [("", "PER: Ann (1)"), ("", "")])

    assert [value(f"entity_{name}", rows) for name in ("precision", "recall", "f1")] == [0, 0, 0]


def test_steps() -> None:
    rows = said(
        "steps",
        [
            ("1 right\n2 wrong", "1 right\n2 wrong"),
            ("1 wrong\n2 right", "1 right\n2 right"),
            ("1 right", "1 right"),
        ],
    )

    assert value("right_steps", rows) == pytest.approx(4 / 5)
    assert value("wrong_step_f1", rows) == pytest.approx(2 * 1 / (2 + 1))
    assert value("first_error", rows) == pytest.approx(2 / 3)
    assert value("wrong_step_f1", rows[2:]) == 1


def test_preferences_compare_whole_answers() -> None:
    rows = said("score", [("a\nb", "a\nb"), ("b\na", "a\nb"), ("", "a")])

    assert value("preferred", rows) == pytest.approx(1 / 3)


def test_number() -> None:
    rows = said("number", [("1", "2"), ("4", "4"), ("9", "6")])

    assert value("mae", rows) == pytest.approx(4 / 3)
    assert value("rmse", rows) == pytest.approx(math.sqrt(10 / 3))
    # The mean is 4: 4 + 0 + 4 around it.
    assert value("r2", rows) == pytest.approx(1 - 10 / 8)


def test_several_numbers_have_the_mean_of_their_scores() -> None:
    rows = said(
        "number",
        [
            (write_numbers({"a: b": "1", "c": "7"}), write_numbers({"a: b": "1", "c": "5"})),
            (write_numbers({"a: b": "3", "c": "7"}), write_numbers({"a: b": "3", "c": "9"})),
        ],
    )

    assert read_numbers(rows[0].lines) == {"a: b": 1, "c": 7}
    assert value("r2", rows) == pytest.approx((1 + 0) / 2)
    # Each deviates by 1 or 2 from its mean, and the second was missed by 2 each time.
    assert value("scaled_error", rows) == pytest.approx(math.sqrt((0 + 1) / 2))
    assert [one.key for one in for_rows(rows)] == ["r2", "scaled_error"]


def test_single_rows_of_numbers_are_scored_by_their_error() -> None:
    one = said("number", [("1", "2"), ("4", "4"), ("9", "6")])
    several = said("number", [("a: 1\nb: 7", "a: 1\nb: 5"), ("a: 3\nb: 9", "a: 3\nb: 9")])
    scores = [
        [metric.aggregate(metric.row_statistics(row) or ()) for row in rows]
        for rows in (one, several)
        for metric in [for_single_rows(primary(rows), rows)]
    ]

    assert scores == [[1, 0, 3], [pytest.approx(math.sqrt(1 / 2)), 0]]


def test_large_numbers_lose_no_digits() -> None:
    rows = said("number", [(f"{1e9 + at}", f"{1e9 + at + 0.5}") for at in range(10)])
    small = said("number", [(f"{at}", f"{at + 0.5}") for at in range(10)])

    assert value("r2", rows) == pytest.approx(value("r2", small), rel=1e-9)


@pytest.mark.parametrize(("answer", "expected"), [("5", 1), ("6", 0)])
def test_numbers_that_do_not_vary(answer: str, expected: float) -> None:
    assert value("r2", said("number", [(answer, "5"), ("5", "5")])) == expected


@pytest.mark.parametrize("answer", ["", "many", "nan", "inf"])
def test_answers_without_a_number_do_not_count(answer: str) -> None:
    rows = said("number", [(answer, "5"), ("5", "5")])

    for key in ("r2", "rmse", "mae"):
        measured = statistics.measure(EVALUATION_METRICS[key], rows)
        assert measured is not None
        assert measured.n == 1


def test_confidence_and_right_answers_are_compared() -> None:
    rows = [
        *said("label", [("a", "a")] * 3 + [("a", "b")], confidence=0.9),
        *said("label", [("a", "b")], confidence=0.2),
        *said("label", [("a", "a")], confidence=1.0),
    ]
    rows = [replace(row, position=position) for position, row in enumerate(rows)]

    # |3.6 - 3| + |0.2 - 0| + |1 - 1|, of six.
    assert value("label_calibration_error", rows) == pytest.approx(0.8 / 6)


def test_loss_of_the_right_label() -> None:
    rows = [
        replace(row, nll=nll, nll_tokens=1)
        for row, nll in zip(LABELS[:3], (1.0, 2.0, None), strict=True)
    ]

    assert value("label_loss", rows) == pytest.approx(1.5)
    assert "label_calibration_error" not in {one.key for one in for_rows(rows)}


@pytest.mark.parametrize("kind", ["label", "number", "score", "steps", "entities"])
def test_kinds_have_their_own_metrics(kind: AnswerKind) -> None:
    rows = said(kind, [("1", "1"), ("2", "1"), ("1", "1")], confidence=0.5)
    rows = [replace(row, nll=1.0, nll_tokens=1) for row in rows]

    assert {one.kind for one in for_rows(rows)} == {kind}
    assert primary(rows) in metrics.for_rows(rows)
    for metric in for_rows(rows):
        figure = statistics.measure(metric, rows)
        assert figure is not None
        assert figure.low <= figure.value <= figure.high
