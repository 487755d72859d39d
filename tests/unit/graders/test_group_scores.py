"""Figures of groups of scores, and what they say before training."""

from collections.abc import Sequence

import numpy as np
import pytest

from studio.graders.group_scores import judge_scores, refusal, summarise

Groups = Sequence[Sequence[float | None]]


def test_figures_are_those_of_an_independent_computation() -> None:
    groups = [[0.0, 1.0, 0.5, 1.0], [0.25, 0.25, 0.25, 0.25], [1.0, 0.0, 0.0, 0.0]]

    summary = summarise(groups)

    scores = np.array(groups)
    assert summary.mean == pytest.approx(scores.mean())
    assert summary.spread == pytest.approx(scores.std(axis=1, ddof=1).mean())
    assert summary.share_without_spread == pytest.approx(1 / 3)
    assert (summary.lowest, summary.highest, summary.count, summary.errors) == (0, 1, 12, 0)


def test_answers_without_a_score_count_as_errors_and_nowhere_else() -> None:
    with_errors = summarise([[None, 1.0, 0.0], [None, None], [0.5, 0.5, None]])
    without = summarise([[1.0, 0.0], [0.5, 0.5]])

    assert with_errors.errors == 4
    assert (with_errors.mean, with_errors.spread) == (without.mean, without.spread)
    assert with_errors.share_without_spread == without.share_without_spread == 0.5


def test_a_row_with_one_score_says_nothing_about_spread() -> None:
    summary = summarise([[1.0], [0.0], [0.0, 1.0]])

    assert summary.share_without_spread == 0
    assert summary.spread == pytest.approx(np.std([0, 1], ddof=1))


def test_equal_scores_that_differ_by_rounding_have_no_spread() -> None:
    assert summarise([[0.1 + 0.2, 0.3]]).share_without_spread == 1


@pytest.mark.parametrize("groups", [[], [[]], [[], []]])
def test_without_answers_there_are_no_figures_and_no_refusal(groups: Groups) -> None:
    summary = summarise(groups)

    assert (summary.mean, summary.spread, summary.share_without_spread) == (None, None, None)
    assert refusal(summary) == ""
    assert judge_scores(summary).kind == "doubtful"


@pytest.mark.parametrize(
    ("groups", "text"),
    [
        ([[0.0, 0.0], [0.0, None]], "the model never gets a reward"),
        ([[1.0, 1.0], [1.0, 1.0]], "the model solves all rows already"),
        ([[0.5, 0.5], [0.5, 0.5]], "every answer has the same score, 0.5"),
        ([[None, None], [None, 1.0]], "Only 1 of 4 answers could be scored"),
        ([[None, None]], "Only 0 of 2 answers could be scored"),
    ],
)
def test_scores_that_teach_nothing_are_refused(groups: Groups, text: str) -> None:
    summary = summarise(groups)

    assert text in refusal(summary)
    assert judge_scores(summary).kind == "refused"


@pytest.mark.parametrize(
    ("groups", "text"),
    [
        ([[1.0], [0.0]], "at least two answers"),
        ([[1.0, 1.0], [0.0, 0.0]], "never differ in score"),
        ([[0.0] * 127 + [1.0]], "below 0.01"),
        ([[0.5, 0.5]] * 10 + [[0.0, 1.0]], "Few rows have answers that differ"),
        ([[1.0, 0.0, None]], "Some answers could not be scored"),
    ],
)
def test_scores_that_teach_little_are_allowed_with_a_warning(groups: Groups, text: str) -> None:
    summary = summarise(groups)

    assert refusal(summary) == ""
    assert text in judge_scores(summary).text
    assert judge_scores(summary).kind == "doubtful"


def test_answers_that_differ_can_be_learned_from() -> None:
    assert judge_scores(summarise([[1.0, 0.0], [0.5, 0.5]])).kind == "good"
