"""What to try after a run, and why."""

from dataclasses import replace
from typing import Any

import pytest

from studio.methods.classify import EVAL_MACRO_F1
from studio.metrics import EVAL_LOSS
from studio.services.results import improvements, run_verdict
from studio.services.results.run_verdict import RunVerdict
from studio.services.samples.sample_diff import AnswerScore
from tests.support.factories import make_recipe


def verdict(*values: float | None, right: int = 0, judged: int = 0, spoilt: int = 0) -> RunVerdict:
    points = [(10 * at, value) for at, value in enumerate(values)]
    trend = run_verdict.describe_trend(points, EVAL_LOSS)
    score = AnswerScore(right, judged)
    return RunVerdict(
        sentence="",
        is_success=None,
        before=replace(score, right=0),
        after=score,
        pairs=[],
        metric="eval_loss",
        trend=trend,
        spoilt=spoilt,
    )


def suggest(
    told: RunVerdict,
    *,
    rows: int = 5000,
    alarms: int = 0,
    wider: str = "",
    **values: Any,  # noqa: ANN401 -- any field of a recipe
) -> dict[str, dict[str, Any]]:
    recipe = make_recipe(optimisation={"max_steps": 20, "learning_rate": 1e-3}, **values)
    return {
        one.title: one.change
        for one in improvements.suggest(recipe, told, rows=rows, alarms=alarms, wider=wider)
    }


@pytest.mark.parametrize(
    ("validated", "rows", "holds_out", "title", "change"),
    [
        (4, 86, True, "Validate on more rows", {"data": {"validation_share": 0.3}}),
        (10, 390, True, "Validate on more rows", {"data": {"validation_share": 0.075}}),
        (4, 86, False, "Add validation rows", {}),
    ],
)
def test_few_validation_rows_come_first(
    validated: int, rows: int, title: str, change: dict[str, Any], *, holds_out: bool
) -> None:
    trend = run_verdict.describe_trend([(0, 0.0), (1, 0.4)], EVAL_MACRO_F1, validated)
    unclear = replace(verdict(), trend=trend)
    found = improvements.suggest(
        make_recipe(), unclear, rows=rows, alarms=0, wider="", holds_out=holds_out
    )

    assert (found[0].title, found[0].change) == (title, change)
    assert str(validated) in found[0].reason


@pytest.mark.parametrize(
    ("values", "title", "change"),
    [
        ((4.0, 3.0, 2.0), "Train longer", {"optimisation": {"max_steps": 40}}),
        ((4.0, 2.0, 3.0), "Train shorter", {"optimisation": {"max_steps": 10}}),
        ((2.0, 4.0), "Lower the learning rate", {"optimisation": {"learning_rate": 1e-4}}),
        ((2.0, 1.99), "Raise the learning rate", {"optimisation": {"learning_rate": 3e-3}}),
    ],
)
def test_curve_suggests_change(
    values: tuple[float, ...], title: str, change: dict[str, Any]
) -> None:
    assert next(iter(suggest(verdict(*values)).items())) == (title, change)


@pytest.mark.parametrize(
    ("values", "title", "change"),
    [
        (
            {"method": "dpo"},
            "Keep the better answers likely",
            {"preference": {"sft_weight": 0.2}},
        ),
        (
            {"method": "dpo", "preference": {"sft_weight": 1.0}},
            "Lower the learning rate",
            {"optimisation": {"learning_rate": 1e-4}},
        ),
        ({}, "Lower the learning rate", {"optimisation": {"learning_rate": 1e-4}}),
    ],
)
def test_lost_answers_come_first(
    values: dict[str, Any], title: str, change: dict[str, Any]
) -> None:
    found = suggest(verdict(4.0, 3.0, 2.0, spoilt=2), **values)

    assert next(iter(found.items())) == (title, change)


def test_run_that_diverged_after_a_gain_needs_a_lower_rate_not_more_data() -> None:
    found = suggest(verdict(5.0, 4.0, 84.2))

    assert list(found)[:2] == ["Train shorter", "Lower the learning rate"]
    assert "Add more data" not in found


def test_alarms_suggest_precision_first() -> None:
    found = suggest(verdict(4.0, 3.0), alarms=2, wider="fp32")

    assert next(iter(found.items())) == ("Use another precision", {"precision": "fp32"})


def test_few_rows_suggest_more_data_unless_all_is_right() -> None:
    assert "Add more data" in suggest(verdict(4.0, 3.0, right=2, judged=6), rows=40)
    assert "Add more data" not in suggest(verdict(4.0, 3.0, right=6, judged=6), rows=40)


def test_without_measurements_only_sweep_is_suggested() -> None:
    assert list(suggest(verdict())) == ["Search for better settings"]


def test_epochs_are_scaled_when_no_steps_are_set() -> None:
    recipe = make_recipe(optimisation={"num_train_epochs": 3.0})
    (longer, _sweep) = improvements.suggest(
        recipe, verdict(4.0, 3.0), rows=5000, alarms=0, wider=""
    )

    assert longer.change == {"optimisation": {"num_train_epochs": 6.0}}
