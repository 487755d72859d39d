"""What a run is said to have achieved, from the shape of its curve and its answers."""

import math

import pytest
from sqlmodel import Session

from studio.db.tables import Sample
from studio.methods import METHODS
from studio.methods.classify import EVAL_MACRO_F1
from studio.methods.kto import EVAL_MARGIN
from studio.methods.regress import EVAL_R2
from studio.methods.rollouts import EVAL_REWARD
from studio.metrics import EVAL_LOSS, EVAL_TOKEN_ACCURACY
from studio.services.results import run_verdict
from studio.services.runs import attempts
from studio.services.samples.sample_diff import AnswerScore
from tests.support.factories import make_running, metrics_event


def trend_of(*values: float | None) -> run_verdict.ValidationTrend:
    points: list[run_verdict.Point] = [(10 * at, value) for at, value in enumerate(values)]
    return run_verdict.describe_trend(points, EVAL_LOSS)


@pytest.mark.parametrize(
    ("values", "shape"),
    [
        ((), "none"),
        ((2.0,), "single"),
        ((None, 2.0), "single"),
        ((4.0, 3.0, 2.0), "falling"),
        ((4.0, 2.0, 1.99), "level"),
        ((4.0, 2.0, 3.0), "overfitting"),
        ((4.0, 3.99, 3.98), "unchanged"),
        ((4.0, 4.5, 5.0), "worse"),
        ((4.0, 3.0, None), "broken"),
        ((None,), "broken"),
        ((0.0, 0.0), "unchanged"),
        ((4.0, None, 2.0), "falling"),
    ],
)
def test_curve_has_shape(values: tuple[float | None, ...], shape: str) -> None:
    assert trend_of(*values).shape == shape


@pytest.mark.parametrize(("last", "shape"), [(0.4, "level"), (0.9, "falling"), (0.2, "worse")])
def test_scores_drawn_by_chance_are_not_said_to_memorise(last: float, shape: str) -> None:
    points: list[run_verdict.Point] = [(0, 0.3), (10, 0.45), (20, 0.44), (30, last)]
    trend = run_verdict.describe_trend(points, EVAL_REWARD)

    assert (trend.shape, "memorised" in trend.sentence) == (shape, False)


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("eval_preferred_share", 0.9343, "93.4 %"),
        ("eval_preferred_share", 1.0, "100 %"),
        ("eval_macro_f1", 0.4444, "44.4 %"),
        ("eval_rating_margin", -1.6e-8, "0"),
        ("eval_rating_margin", 1.9192, "1.919"),
        ("eval_loss", 1.6e-8, "1.6e-08"),
    ],
)
def test_values_are_written_as_what_they_are(key: str, value: float, text: str) -> None:
    specs = {one.key: one for method in METHODS.values() for one in method.metrics.all}

    assert run_verdict.write_value(value, specs[key]) == text


def test_overfitting_names_best_step() -> None:
    trend = trend_of(4.0, 2.0, 3.0)

    assert (trend.best, trend.best_step, trend.last_step) == (2.0, 10, 20)
    assert trend.sentence.startswith("Best at step 10 with 2, then worse: 3 at the end.")


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ((5.0, 84.2), "It got worse: validation went from 5 to 84.2"),
        ((5.0, 4.9, 8.0), "It got worse: validation went from 5 to 8"),
        ((5.0, 3.0, None), "Training broke down: validation became NaN or infinite."),
    ],
)
def test_run_that_diverged_without_right_answers_is_called_worse(
    values: tuple[float | None, ...], sentence: str
) -> None:
    none_right = AnswerScore(0, 2)

    assert run_verdict.judge(none_right, none_right, trend_of(*values)) == (sentence, False)


@pytest.mark.parametrize(
    ("values", "shape", "is_success"),
    [
        ((0.0, 0.1, 0.3), "falling", True),
        ((1e-7, 0.1, 0.3), "falling", True),
        ((0.0, 1e-6, 2e-6), "unchanged", False),
        ((0.0, -0.1, -0.4), "worse", False),
        ((0.0, 0.3, 0.1), "overfitting", True),
    ],
)
def test_metric_that_starts_at_zero_has_absolute_changes(
    values: tuple[float, ...], shape: str, *, is_success: bool
) -> None:
    trend = run_verdict.describe_trend(list(enumerate(values)), EVAL_MARGIN)

    assert trend.shape == shape
    assert run_verdict.judge(NO_SCORE, NO_SCORE, trend)[1] == is_success


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ((-0.9, -0.1), "It is no better than guessing yet: validation went from -0.9 to -0.1"),
        ((-0.9, 0.3), "It learned: validation went from -0.9 to 0.3"),
    ],
)
def test_gain_that_reaches_no_more_than_guessing_is_no_success(
    values: tuple[float, ...], sentence: str
) -> None:
    trend = run_verdict.describe_trend(list(enumerate(values)), EVAL_R2)

    judged = run_verdict.judge(NO_SCORE, NO_SCORE, trend)[0]
    assert judged.replace("\N{MINUS SIGN}", "-") == sentence


@pytest.mark.parametrize(
    ("values", "rows", "shape", "is_success"),
    [
        ((0.0, 0.44), 4, "chance", None),
        ((0.44, 0.0), 4, "chance", None),
        ((0.0, 0.44), 40, "falling", True),
        ((0.0, 0.0), 4, "unchanged", False),
        ((0.5, 0.9, 0.86), 25, "level", True),
        ((0.5, 0.9, 0.86), 1000, "overfitting", True),
        ((0.9, 0.5), 40, "worse", False),
    ],
)
def test_share_of_few_rows_may_have_changed_by_chance(
    values: tuple[float, ...], rows: int, shape: str, *, is_success: bool | None
) -> None:
    trend = run_verdict.describe_trend(list(enumerate(values)), EVAL_MACRO_F1, rows)
    sentence, judged = run_verdict.judge(NO_SCORE, NO_SCORE, trend)

    assert (trend.shape, judged) == (shape, is_success)
    assert sentence.endswith(f"so few validation rows: {rows}") == (shape == "chance")


def test_loss_of_few_rows_is_judged() -> None:
    """How much a mean of many tokens varies is not known from the number of rows."""
    trend = run_verdict.describe_trend([(0, 4.0), (1, 2.0)], EVAL_LOSS, 2)

    assert trend.shape == "falling"


def test_rising_accuracy_counts_as_gain() -> None:
    trend = run_verdict.describe_trend([(0, 0.2), (10, 0.4), (20, 0.8)], EVAL_TOKEN_ACCURACY)

    assert (trend.shape, trend.best, trend.gain > 0) == ("falling", 0.8, True)


@pytest.mark.parametrize(
    ("before", "after", "sentence", "is_success"),
    [
        (0, 5, "It learned it: 0 of 6 → 5 of 6 right", True),
        (1, 3, "It learned some of it: 1 of 6 → 3 right", True),
        (0, 1, "It did not learn it yet: 0 of 6 → 1 of 6 right", False),
        (3, 3, "It did not learn it yet: 3 of 6 → 3 of 6 right", False),
        (6, 6, "It knew it already: 6 of 6 right before and after", True),
        (4, 2, "It got worse: 4 of 6 → 2 of 6 right", False),
    ],
)
def test_answers_decide_verdict(
    before: int, after: int, sentence: str, *, is_success: bool
) -> None:
    scores = AnswerScore(before, 6), AnswerScore(after, 6)

    assert run_verdict.judge(*scores, trend_of(4.0, 2.0)) == (sentence, is_success)


NO_SCORE = AnswerScore(0, 0)


@pytest.mark.parametrize(
    ("values", "begin", "is_success"),
    [
        ((4.0, 2.0), "It learned: validation went from 4 to 2", True),
        ((2.0, 4.0), "It got worse: validation went from 2 to 4", False),
        ((2.0, 1.99), "It hardly changed", False),
        ((2.0,), "Training is complete. One validation is too little", None),
        ((), "Training is complete. Nothing was validated", None),
        ((None, 2.0), "Training is complete. One validation is too little", None),
        ((4.0, 3.0, None), "Training broke down", False),
    ],
)
def test_without_expected_answers_curve_decides(
    values: tuple[float | None, ...], begin: str, *, is_success: bool | None
) -> None:
    sentence, success = run_verdict.judge(NO_SCORE, NO_SCORE, trend_of(*values))

    assert (sentence.startswith(begin), success) == (True, is_success)


def test_no_right_answer_but_better_curve_claims_no_success() -> None:
    scores = AnswerScore(0, 6), AnswerScore(0, 6)
    sentence, is_success = run_verdict.judge(*scores, trend_of(4.0, 2.0))

    assert sentence == "Validation went from 4 to 2, but no answer of 6 is right yet"
    assert is_success is None


def test_better_curve_is_no_success_if_answers_fell_silent() -> None:
    sentence, is_success = run_verdict.judge(
        NO_SCORE, NO_SCORE, trend_of(4.0, 2.0), spoilt=2, answers=4
    )

    assert sentence == (
        "Validation went from 4 to 2, but 2 of 4 answers became empty or repeat themselves"
    )
    assert is_success is False


def test_answers_that_fell_silent_are_counted(db: Session) -> None:
    run = make_running(db)
    for position, (before, after) in enumerate([("", ""), ("a", ""), ("a", "b " * 60)]):
        for stage, answer in (("before", before), ("after", after)):
            db.add(sample(position, stage, answer, run.id or 0))
    db.flush()

    assert run_verdict.load_verdict(db, run).spoilt == 2


def test_curve_that_diverged_is_not_said_to_memorise() -> None:
    trend = trend_of(5.0, 4.0, 84.2)

    assert trend.sentence == "Best at step 10 with 4, then worse than at first: 84.2."


def test_loss_that_became_nan_is_told_without_validation(db: Session) -> None:
    run = make_running(db)
    attempts.apply_events(db, run, [metrics_event(1, loss=2.0), metrics_event(2, loss=math.nan)], 1)
    verdict = run_verdict.load_verdict(db, run)

    assert verdict.sentence == "Training broke down: its loss became NaN or infinite."
    assert verdict.is_success is False


def sample(position: int, stage: str, answer: str, run_id: int = 1) -> Sample:
    return Sample(
        run_id=run_id,
        stage=stage,
        step=0,
        position=position,
        prompt=f"Q{position}",
        reference="yes",
        answer=answer,
    )


def test_pairs_show_what_was_learned_and_what_is_still_wrong() -> None:
    answers = [("no", "yes"), ("no", "no"), ("no", "yes"), ("no", "yes"), ("no", "maybe")]
    told = [
        sample(at, stage, answer)
        for at, pair in enumerate(answers)
        for stage, answer in zip(("before", "after"), pair, strict=True)
    ]
    pairs = run_verdict.pair_answers([*told, sample(9, "before", "no")])
    shown = run_verdict.most_telling(pairs)

    assert len(pairs) == len(answers)
    assert [(pair.prompt, pair.is_right) for pair in shown] == [
        ("Q0", True),
        ("Q2", True),
        ("Q4", False),
    ]
