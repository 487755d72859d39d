"""Which metrics rows get."""

from dataclasses import replace

import pytest

from studio.evaluation import statistics, text_scores
from studio.evaluation.metrics import EVALUATION_METRICS, for_rows, missing_reason, primary
from studio.evaluation.rows import AnsweredRow
from tests.support.answered_rows import answered, answered_pairs

LONG = "This is a reference of more than five words."
ALWAYS = {"cut_off", "empty", "repeats", "answer_tokens"}


def rows_with(*references: str, nll: float | None = None) -> list[AnsweredRow]:
    return [
        answered("x", reference, position=at, nll=nll, nll_tokens=1)
        for at, reference in enumerate(references)
    ]


def test_metrics_are_in_display_order() -> None:
    assert list(EVALUATION_METRICS) == [
        *("exact", "exact_relaxed", "contains", "number", "token_f1", "rouge_l", "chrf", "bleu"),
        *("json_valid", "json_schema", "json_equal", "loss", "bits_per_byte"),
        *("preference_margin", "ranking"),
        *("cut_off", "empty", "repeats", "answer_tokens"),
        *("right_label", "macro_f1", "micro_f1"),
        *("entity_f1", "entity_precision", "entity_recall", "preferred"),
        *("label_loss", "preference_loss"),
        *("label_calibration_error", "preference_calibration_error"),
        *("wrong_step_f1", "first_error", "right_steps", "r2", "scaled_error", "rmse", "mae"),
    ]


@pytest.mark.parametrize(
    ("rows", "extra"),
    [
        (rows_with("", ""), set()),
        (rows_with("yes", "no"), {"contains"}),
        (rows_with("7", "8", "many"), {"contains", "number"}),
        (rows_with(f"{LONG} #### 7", f"{LONG} #### 8"), {"number", "bleu"}),
        (rows_with(f"{LONG} 7", f"{LONG} 8"), {"bleu"}),
        (rows_with(LONG, nll=1.0), {"bleu", "loss", "bits_per_byte"}),
        (
            rows_with('{"name": "Ada", "born": 1815}'),
            {"bleu", "json_valid", "json_schema", "json_equal"},
        ),
        (rows_with("北京"), {"contains"}),
    ],
)
def test_rows_get_metrics_that_apply(rows: list[AnsweredRow], extra: set[str]) -> None:
    keys = [metric.key for metric in for_rows(rows)]

    has_references = any(row.reference for row in rows)
    general = {"exact", "exact_relaxed", "token_f1", "rouge_l", "chrf"} if has_references else set()
    assert set(keys) == ALWAYS | general | extra
    assert keys == [key for key in EVALUATION_METRICS if key in keys]


def test_no_rows_get_no_metrics() -> None:
    assert for_rows([]) == []


@pytest.mark.parametrize(
    ("rows", "key"),
    [
        (rows_with('{"a": 1}', "[2]"), "json_equal"),
        (rows_with("spam", "ham", nll=1.0), "exact"),
        (rows_with("#### 7", f"{LONG} #### 8", nll=1.0), "number"),
        (rows_with(LONG, nll=1.0), "loss"),
        (rows_with(LONG), "chrf"),
        (rows_with(""), "repeats"),
        ([], "repeats"),
    ],
)
def test_verdict_uses_metric_that_fits_references(rows: list[AnsweredRow], key: str) -> None:
    assert primary(rows).key == key


@pytest.fixture
def _without_sacrebleu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_scores, "has_sacrebleu", lambda: False)


@pytest.mark.usefixtures("_without_sacrebleu")
def test_without_sacrebleu_two_metrics_are_left_out_with_reason() -> None:
    rows = answered_pairs([(LONG, LONG)])
    chrf = EVALUATION_METRICS["chrf"]

    assert {"chrf", "bleu"}.isdisjoint(metric.key for metric in for_rows(rows))
    assert primary(rows).key == "rouge_l"
    assert chrf.row_statistics(rows[0]) is None
    assert chrf.signature(rows).endswith("version:none")
    assert missing_reason(chrf) == (
        "chrF needs the package sacrebleu: install it, then score again."
    )


def test_metrics_that_can_be_computed_have_no_reason() -> None:
    assert {missing_reason(metric) for metric in EVALUATION_METRICS.values()} == {""}


def test_preferences_are_ranked() -> None:
    rows = [
        replace(row, rejected_nll=worse)
        for row, worse in zip(rows_with("yes", "no", "well", nll=1.0), (2.0, 0.5, 3.0), strict=True)
    ]

    assert primary(rows).key == "preference_margin"
    assert statistics.value(primary(rows), rows) == pytest.approx((1 - 0.5 + 2) / 3)
    assert statistics.value(EVALUATION_METRICS["ranking"], rows) == pytest.approx(2 / 3)


def test_few_preferences_among_other_rows_do_not_decide() -> None:
    rows = [replace(rows_with("yes", nll=1.0)[0], rejected_nll=2.0), *rows_with("a", "b")[:2]]

    assert primary(rows).key == "exact"
    assert "ranking" not in {metric.key for metric in for_rows(rows)}
