"""How long a run will take, from those before it."""

import math
from dataclasses import astuple, replace
from datetime import timedelta

import pytest
from sqlmodel import Session

from studio.db.tables import DatasetVersion
from studio.hardware import detect
from studio.methods import AnyRecipe
from studio.protocols.events import Finished, MetricsLogged, Started
from studio.services.estimates import reference_runs, run_duration
from studio.services.estimates.reference_runs import Overhead, ReferenceRun, TokenLengths
from studio.services.runs import attempts
from tests.support.factories import make_recipe, make_running

DATA = DatasetVersion(
    dataset_id=1, number=1, kind="conversation", sha256="0", train_rows=105, validation_rows=5
)
LENGTHS = TokenLengths(longest=50, answer=20, rows=100, row_tokens=40, examples=100)


def seen(step_seconds: float, tokens: int = 3200, beside: float | None = 10.0) -> ReferenceRun:
    return ReferenceRun(
        recipe=make_recipe(),
        resolved={},
        steps=10,
        tokens=tokens,
        step_seconds=step_seconds,
        overhead_seconds=beside,
        peak_bytes=None,
    )


@pytest.mark.parametrize(
    ("knobs", "steps"),
    [
        ({"max_steps": 7}, 7),
        ({"num_train_epochs": 1.0}, 13),
        ({"num_train_epochs": 1.5}, 20),
        ({"num_train_epochs": 2.0, "gradient_accumulation_steps": 4}, 8),
    ],
)
def test_step_count_matches_transformers(knobs: dict[str, float], steps: int) -> None:
    assert run_duration.count_steps(make_recipe(optimisation=knobs), 100) == steps


def test_duration_is_unknown_without_similar_runs() -> None:
    told = run_duration.estimate_time(
        make_recipe(optimisation={"max_steps": 10}), DATA, LENGTHS, []
    )

    assert (told.steps, told.tokens, told.seconds) == (10, 3200, None)


def test_estimated_seconds_scale_with_tokens_per_step() -> None:
    twice = make_recipe(optimisation={"max_steps": 10, "per_device_train_batch_size": 16})

    told = run_duration.estimate_time(twice, DATA, LENGTHS, [seen(2.0)])

    assert told.seconds == pytest.approx(10 * 2.0 * 2 + 10)


def test_estimated_interval_contains_observed_times() -> None:
    asked = make_recipe(optimisation={"max_steps": 10})

    told = run_duration.estimate_time(asked, DATA, LENGTHS, [seen(1.0), seen(2.0), seen(4.0)])

    assert told.least_seconds is not None
    assert told.most_seconds is not None
    assert told.least_seconds < 10 * 1.0 + 10
    assert told.seconds == pytest.approx(10 * 2.0 + 10)
    assert told.most_seconds > 10 * 4.0 + 10


def looking(every: float, prompts: int) -> AnyRecipe:
    samples = {"prompts": prompts, "between": 4, "max_new_tokens": 10}
    return make_recipe(evaluation={"eval_steps": every}, samples=samples)


@pytest.mark.parametrize(
    ("every", "prompts", "seconds"),
    [
        (100, 0, 1 + 2 * 10 * 0.1),  # before the first step and after the last
        (0.5, 0, 1 + 3 * 10 * 0.1),
        (4, 0, 1 + 4 * 10 * 0.1),
        (4, 2, 1 + 4 * 10 * 0.1 + 4 * 20 * 0.5),  # of four validations two have answers
        (1, 2, 1 + 11 * 10 * 0.1 + 6 * 20 * 0.5),
    ],
)
def test_overhead_includes_validations_and_samples(
    every: float, prompts: int, seconds: float
) -> None:
    spent = Overhead(row=0.1, token=0.5, rest=1)

    assert spent.estimate_seconds(looking(every, prompts), rows=10, steps=10) == pytest.approx(
        seconds
    )


def rewriting(beams: int) -> AnyRecipe:
    samples = {"prompts": 2, "between": 0, "max_new_tokens": 10}
    return make_recipe(method="seq2seq", rewriting={"num_beams": beams}, samples=samples)


def test_beams_multiply_time_of_sample_answers() -> None:
    spent = Overhead(row=0, token=0.5, rest=1)

    seconds = [spent.estimate_seconds(rewriting(beams), rows=10, steps=10) for beams in (1, 4)]

    assert seconds == [1 + 2 * 20 * 0.5, 1 + 4 * 2 * 20 * 0.5]


def test_overhead_is_that_of_runs_with_as_many_beams() -> None:
    """Validations write answers, too, and take longer with several."""
    one, four = (
        replace(seen(1.0, beside=beside), recipe=rewriting(beams))
        for beams, beside in ((1, 10.0), (4, 40.0))
    )

    def seconds(runs: list[ReferenceRun]) -> float:
        estimate = run_duration.estimate_time(rewriting(4), DATA, LENGTHS, runs)
        assert estimate.seconds is not None
        return estimate.seconds - estimate.steps * 1.0

    assert seconds([one, four, one]) == pytest.approx(40)
    assert seconds([one]) == pytest.approx(10)


def test_run_overhead_is_split_by_validations_and_samples(db: Session) -> None:
    run = make_running(db, evaluation={"eval_steps": 4}, samples={"prompts": 2, "between": 1})
    about = {"device_name": detect().device_name, "validation_rows": 5}
    # A step takes 1 s, a validation 2 s, and the answers after the first of them 6 s.
    told = [("eval_loss", 0, 2), ("loss", 4, 6), ("eval_loss", 4, 8), ("loss", 8, 18)]
    told += [("eval_loss", 8, 20), ("loss", 9, 21), ("eval_loss", 9, 23)]
    numbers = [
        MetricsLogged(step=step, epoch=1, tokens=100, seconds=seconds, metrics={key: 1.0})
        for key, step, seconds in told
    ]
    ends = Finished(metrics={"train_seconds": 9.0})
    attempts.apply_events(db, run, [Started(total_steps=9, resolved=about), *numbers, ends], 1)
    run.claimed_at, run.finished_at = run.created_at, run.created_at + timedelta(seconds=60)
    (seen,) = reference_runs.load_recent(db)

    answers = 6 * 3  # as long before training and after it
    assert seen.overhead_seconds == 51
    assert seen.overhead is not None
    assert astuple(seen.overhead) == pytest.approx((2 / 5, 6 / (2 * 64), 51 - 4 * 2 - answers))


def test_more_validations_increase_estimated_time() -> None:
    spent = replace(seen(1.0), overhead=Overhead(row=0.1, token=0, rest=4.0))

    told = run_duration.estimate_time(looking(5, 0), DATA, LENGTHS, [spent])

    assert told.seconds == pytest.approx(
        told.steps * 1.0 + 4 + 5 * 0.1 * (1 + math.ceil(told.steps / 5))
    )


def test_packed_step_count_uses_packed_examples() -> None:
    packed = make_recipe(data={"packing": True}, optimisation={"num_train_epochs": 1.0})
    shared = replace(LENGTHS, examples=20)

    told = run_duration.estimate_time(packed, DATA, shared, [])
    unread = run_duration.estimate_time(packed, DATA, None, [])

    # Of eight examples each, with 200 tokens of five rows.
    assert (told.steps, told.tokens, told.is_most) == (3, 3 * 8 * 200, False)
    assert (unread.steps, unread.is_most) == (14, True)


def limited(minutes: float) -> AnyRecipe:
    return make_recipe(optimisation={"max_steps": 100, "max_minutes": minutes})


def test_time_limit_cuts_estimated_steps_and_tokens() -> None:
    told = run_duration.estimate_time(
        limited(1.0), DATA, LENGTHS, [seen(2.3)]
    )  # 240 s of 100 steps

    assert (told.is_time_limit, told.is_most, told.seconds, told.most_seconds) == (
        True,
        True,
        60,
        60,
    )
    assert (told.steps, told.tokens) == (25, 8000)


def test_run_that_ends_within_its_time_limit_keeps_its_estimate() -> None:
    told = run_duration.estimate_time(limited(5.0), DATA, LENGTHS, [seen(2.3)])

    assert (told.is_time_limit, told.steps) == (False, 100)
    assert told.seconds == pytest.approx(240)


def test_time_limit_is_estimate_while_speed_is_unknown() -> None:
    told = run_duration.estimate_time(limited(1.0), DATA, LENGTHS, [])

    assert (told.is_time_limit, told.is_most, told.steps, told.seconds) == (True, True, 100, 60)
