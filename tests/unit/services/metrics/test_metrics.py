"""Curves: aligned, cut to size, and honest about what is not a number."""

import math
from datetime import UTC, datetime

import pytest
from sqlmodel import Session

from studio.db.tables import Run
from studio.services.metrics import metrics
from studio.services.runs import attempts
from tests.support.factories import make_running, metrics_event


def told(db: Session, run: Run, *losses: float) -> int:
    steps = range(1, len(losses) + 1)
    attempts.apply_events(
        db, run, [metrics_event(s, loss=x) for s, x in zip(steps, losses, strict=True)], 1
    )
    return run.id or 0


def test_short_curve_is_not_downsampled(db: Session) -> None:
    run = told(db, make_running(db), 3.0, 2.0, 1.0)
    curves = metrics.load_curves(db, [run], ["loss"])

    assert (curves.x, curves.series[run, "loss"].mean) == ([1, 2, 3], [3.0, 2.0, 1.0])


def test_downsampling_keeps_spikes(db: Session) -> None:
    losses = [1.0] * 500 + [9.0] + [1.0] * 499
    run = told(db, make_running(db), *losses)
    curves = metrics.load_curves(db, [run], ["loss"], buckets=10)

    series = curves.series[run, "loss"]
    assert len(curves.x) <= 11
    assert max(value or 0 for value in series.max) == 9.0


def test_long_curve_matches_on_step_and_token_axes(db: Session) -> None:
    losses = [math.sin(step / 7) for step in range(1000)]
    losses[500] = math.nan
    run = told(db, make_running(db), *losses)
    by_step = metrics.load_curves(db, [run], ["loss"], buckets=10)
    by_tokens = metrics.load_curves(db, [run], ["loss"], x="tokens", buckets=10)

    one, other = by_step.series[run, "loss"], by_tokens.series[run, "loss"]
    assert [x * 100 for x in by_step.x] == pytest.approx(by_tokens.x)
    assert (one.mean, one.min, one.max) == (other.mean, other.min, other.max)
    assert [x * 100 for x in one.non_finite] == pytest.approx(other.non_finite)


def test_sparse_curve_keeps_its_position_beside_dense_curve(db: Session) -> None:
    run = make_running(db)
    number = told(db, run, *[1.0] * 1000)
    attempts.apply_events(db, run, [metrics_event(1000, eval_loss=2.0)], 2)
    series = metrics.load_curves(db, [number], ["loss", "eval_loss"], buckets=10).series

    drawn = series[number, "eval_loss"].mean
    assert [value for value in drawn if value is not None] == [2.0]
    assert drawn[-1] == 2.0


def test_runs_of_different_length_share_axis(db: Session) -> None:
    short = told(db, make_running(db), 3.0)
    long = told(db, make_running(db), 3.0, 2.0)
    curves = metrics.load_curves(db, [short, long], ["loss"])

    assert curves.x == [1, 2]
    assert curves.series[short, "loss"].mean == [3.0, None]


def test_curves_support_tokens_epoch_and_seconds_axes(db: Session) -> None:
    run = told(db, make_running(db), 3.0, 2.0)

    assert metrics.load_curves(db, [run], ["loss"], x="tokens").x == [100, 200]
    assert metrics.load_curves(db, [run], ["loss"], x="epoch").x == [0.1, 0.2]
    assert metrics.load_curves(db, [run], ["loss"], x="seconds").x == [0.5, 1.0]


def test_nan_is_marked_but_not_drawn(db: Session) -> None:
    run = told(db, make_running(db), 3.0, math.nan, 1.0)
    series = metrics.load_curves(db, [run], ["loss"]).series[run, "loss"]

    assert (series.mean, series.non_finite) == ([3.0, None, 1.0], [2])


def test_run_without_metrics_has_no_curves(db: Session) -> None:
    assert metrics.load_curves(db, [make_running(db).id or 0], ["loss"]) == metrics.Curves(
        [], {}, 0
    )


def test_new_rows_are_loaded_once_and_in_order(db: Session) -> None:
    run = told(db, make_running(db), 3.0, math.inf)
    first, second = metrics.load_rows_after(db, run, 0)

    assert [first.values, second.values] == [{"loss": 3.0}, {"loss": "inf"}]
    assert metrics.load_rows_after(db, run, second.last_id) == []


@pytest.mark.parametrize("x", ["step", "relative_step", "epoch", "tokens", "seconds", "norm"])
def test_zoomed_range_returns_individual_points(db: Session, x: str) -> None:
    run = make_running(db)
    rows = [metrics_event(step, loss=float(step), norm=float(step)) for step in range(1, 1001)]
    attempts.apply_events(db, run, rows, 1)
    whole = metrics.load_curves(db, [1], ["loss"], x=x, buckets=2000)
    ends = (whole.x[400], whole.x[419])
    part = metrics.load_curves(db, [1], ["loss"], x=x, buckets=100, part=ends)

    assert (part.x, part.series[1, "loss"].mean) == (
        whole.x[400:420],
        [float(step) for step in range(401, 421)],
    )


def test_relative_step_counts_from_first_step_of_run(db: Session) -> None:
    late = make_running(db)
    attempts.apply_events(db, late, [metrics_event(step, loss=1.0) for step in (50, 51)], 1)
    early = told(db, make_running(db), 3.0, 2.0)
    curves = metrics.load_curves(db, [early, 1], ["loss"], x="relative_step")

    assert (curves.x, curves.offsets) == ([0, 1], {2: -1, 1: -50})


def test_wall_time_axis_starts_at_first_step(db: Session) -> None:
    run = make_running(db)
    run.first_step_at = datetime(2026, 11, 1, tzinfo=UTC)
    number = told(db, run, 3.0)

    assert metrics.load_curves(db, [number], ["loss"], x="wall").x == [
        datetime(2026, 11, 1, tzinfo=UTC).timestamp() + 0.5
    ]


def test_metric_axis_uses_only_steps_with_both_metrics(db: Session) -> None:
    run = make_running(db)
    rows = [metrics_event(1, loss=3.0, norm=5.0), metrics_event(2, loss=2.0, norm=4.0)]
    attempts.apply_events(db, run, [*rows, metrics_event(3, loss=1.0)], 1)
    curves = metrics.load_curves(db, [run.id or 0], ["loss"], x="norm")

    assert (curves.x, curves.series[run.id or 0, "loss"].mean) == ([4.0, 5.0], [2.0, 3.0])


def test_runs_with_different_token_rates_share_token_buckets(db: Session) -> None:
    slow, fast = make_running(db), make_running(db)
    for run, each in ((slow, 1), (fast, 4)):
        rows = [
            metrics_event(step, loss=float(step)).model_copy(update={"tokens": step * each})
            for step in range(1, 1001)
        ]
        attempts.apply_events(db, run, rows, 1)
    curves = metrics.load_curves(db, [1, 2], ["loss"], x="tokens", buckets=10)
    means = {run: curves.series[run, "loss"].mean for run in (1, 2)}

    assert len(curves.x) <= 11
    assert [value is not None for value in means[1]].count(True) == 3
    assert all(value is not None for value in means[2])


def test_first_broken_step_is_given_on_token_axis(db: Session) -> None:
    run = told(db, make_running(db), 3.0, math.nan, math.nan)

    assert (
        metrics.load_curves(db, [run], ["loss"], x="tokens").series[run, "loss"].first_broken == 2
    )


def test_rows_of_several_runs_are_grouped_by_run(db: Session) -> None:
    first, second = told(db, make_running(db), 3.0), told(db, make_running(db), 2.0)
    found = metrics.load_rows_by_run(db, [first, second], 0)

    assert {run: [row.values for row in rows] for run, rows in found.items()} == {
        first: [{"loss": 3.0}],
        second: [{"loss": 2.0}],
    }
