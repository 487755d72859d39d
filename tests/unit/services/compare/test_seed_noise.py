"""Whether a difference is more than what seeds alone do."""

import pytest
from sqlmodel import Session

from studio.db.states import RunStatus
from studio.services.compare import compare, seed_noise
from studio.services.compare.seed_noise import RepeatStats
from studio.services.runs import attempts, runs, states
from tests.support.factories import make_running, metrics_event


def done(db: Session, loss: float, seed: int, precision: str = "bf16") -> int:
    run = make_running(db, precision=precision, optimisation={"seed": seed})
    attempts.apply_events(db, run, [metrics_event(1, eval_loss=loss)], 1)
    states.move(db, run, RunStatus.SUCCEEDED)
    return run.id or 0


def judged(db: Session, ids: list[int]) -> list[str]:
    return [cell.noise for cell in compare.compare(db, ids).metrics["eval_loss"]]


def test_noise_is_unknown_without_repeats(db: Session) -> None:
    assert judged(db, [done(db, 1.0, 1), done(db, 2.0, 1, "fp32")]) == ["", "unknown"]


def test_difference_larger_than_seed_spread_is_beyond_noise(db: Session) -> None:
    ids = [done(db, 1.0, 1), done(db, 1.02, 2), done(db, 1.5, 1, "fp32"), done(db, 1.0, 1, "fp16")]

    assert judged(db, ids) == ["", "seed", "beyond", "within"]


def test_repeats_have_mean_spread_and_count(db: Session) -> None:
    ids = [done(db, 1.0, 1), done(db, 2.0, 2), done(db, 3.0, 3)]
    made = compare.compare(db, ids)

    assert made.noise.repeats(1, "eval_loss") == RepeatStats(mean=2.0, spread=1.0, n=3)


def test_repeats_outside_comparison_count_towards_noise(db: Session) -> None:
    first, other = done(db, 1.0, 1), done(db, 2.0, 1, "fp32")
    again = runs.resubmit(db, first, {"optimisation": {"seed": 7}})
    for status in (RunStatus.STARTING, RunStatus.RUNNING):
        states.move(db, again, status)
    attempts.apply_events(db, again, [metrics_event(1, eval_loss=1.1)], 1)
    states.move(db, again, RunStatus.SUCCEEDED)

    assert judged(db, [first, other]) == ["", "beyond"]


def test_unfinished_runs_do_not_count_as_repeats(db: Session) -> None:
    first = done(db, 1.0, 1)
    failed = make_running(db, optimisation={"seed": 2})
    attempts.apply_events(db, failed, [metrics_event(1, eval_loss=9.0)], 1)

    assert seed_noise.measure_noise(db, [runs.get(db, first), failed]).count(first) == 1


@pytest.mark.parametrize("delta", [None, float("nan")])
def test_non_numeric_delta_is_not_judged(db: Session, delta: float | None) -> None:
    run = runs.get(db, done(db, 1.0, 1))

    assert seed_noise.measure_noise(db, [run]).judge(1, 1, "eval_loss", delta) == ""
