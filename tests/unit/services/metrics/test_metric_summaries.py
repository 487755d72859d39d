"""A run's numbers, summed up as they come."""

import math
from pathlib import Path

import pytest
from sqlalchemy import Engine
from sqlmodel import Session, col, delete

from studio.db.session import read_session, unit_of_work
from studio.db.summaries import MetricSummary
from studio.db.tables import Run
from studio.protocols.events import Finished, Resumed, Started
from studio.services.metrics import metric_summaries
from studio.services.metrics.metric_summaries import MAX_POINTS, SMOOTHING_WEIGHT
from studio.services.runs import attempts, run_commands, runs
from studio.services.tasks.exit_diagnosis import ProcessExit
from tests.support.factories import make_finished_run, make_running, metrics_event

STARTED = Started(total_steps=10, resolved={})


def tell(db: Session, run: Run, first: int, *values: float) -> None:
    told = [metrics_event(first + i, loss=value) for i, value in enumerate(values)]
    attempts.apply_events(db, run, told, 1)


def summary(db: Session, run: Run, key: str = "loss") -> MetricSummary:
    return metric_summaries.load_by_run(db, [run.id or 0])[run.id or 0][key]


def ema(values: list[float]) -> float:
    mean = mass = 0.0
    for value in values:
        mean = mean * SMOOTHING_WEIGHT + (1 - SMOOTHING_WEIGHT) * value
        mass = mass * SMOOTHING_WEIGHT + (1 - SMOOTHING_WEIGHT)
    return mean / mass


def test_summary_is_independent_of_event_batching(db: Session) -> None:
    values = [math.sin(i) + 3 for i in range(1, 151)]
    run = make_running(db)
    tell(db, run, 1, *values[:7])
    tell(db, run, 8, *values[7:120])
    tell(db, run, 121, *values[120:])

    one = summary(db, run)
    assert (one.count, one.step, one.last) == (150, 150, values[-1])
    assert (one.least, one.greatest) == (min(values), max(values))
    assert one.smoothed == pytest.approx(ema(values), rel=1e-12)
    assert one.mean10 == pytest.approx(math.fsum(values[-10:]) / 10)
    assert one.mean100 == pytest.approx(math.fsum(values[-100:]) / 100)


def test_runs_stored_together_have_the_summaries_of_runs_stored_apart(db: Session) -> None:
    first, resumed = make_running(db), make_running(db)
    tell(db, first, 1, 5.0)
    tell(db, resumed, 1, 9.0, 8.0, 1.0, 1.0)
    resumed.attempt = 2
    attempts.apply_events(db, resumed, [Resumed(step=2, attempt=2)], 1)
    events = [metrics_event(3, loss=4.0), metrics_event(3, loss=7.0, eval_loss=6.0)]
    attempts.apply_all_events(
        db,
        [
            attempts.NewEvents(run, [event], 1)
            for run, event in zip((first, resumed), events, strict=True)
        ],
    )
    db.flush()

    assert [summary(db, run).mean10 for run in (first, resumed)] == [4.5, 8.0]
    assert [summary(db, run).count for run in (first, resumed)] == [2, 3]
    assert summary(db, resumed, "eval_loss").mean100 == 6.0
    assert set(metric_summaries.load_by_run(db, [first.id or 0])[first.id or 0]) == {"loss"}


def test_summary_curve_contains_means_of_equal_parts(db: Session) -> None:
    values = [float(i) for i in range(1, 201)]
    run = make_running(db)
    tell(db, run, 1, *values[:55])
    tell(db, run, 56, *values[55:])

    curve = summary(db, run).curve
    stride = 8
    parts = [values[i : i + stride] for i in range(0, len(values), stride)]
    assert len(curve) <= MAX_POINTS
    assert curve == pytest.approx([math.fsum(part) / len(part) for part in parts])


def test_non_finite_values_are_counted_and_named(db: Session) -> None:
    run = make_running(db)
    tell(db, run, 1, 2.0, math.inf, 1.0, math.nan)

    one = summary(db, run)
    assert (one.count, one.broken, one.last, one.non_finite) == (2, 2, None, "nan")
    assert (one.least, one.greatest, one.mean10) == (1.0, 2.0, 1.5)


def test_final_metrics_are_summarised(db: Session) -> None:
    run = make_running(db)
    tell(db, run, 1, 2.0)
    attempts.apply_events(db, run, [Finished(metrics={"peak_memory_bytes": 7.0, "loss": 2.0})], 2)

    peak = summary(db, run, "peak_memory_bytes")
    assert (peak.last, peak.least, peak.mean10, summary(db, run).count) == (7.0, 7.0, 7.0, 1)


def test_resumed_run_summary_continues_from_checkpoint(db: Session) -> None:
    run = make_running(db)
    tell(db, run, 1, 9.0, 5.0, 1.0)
    run.attempt = 2
    attempts.apply_events(
        db, run, [STARTED, Resumed(step=2, attempt=2), metrics_event(3, loss=4.0)], 2
    )

    one = summary(db, run)
    assert (one.count, one.least, one.last, one.curve) == (3, 4.0, 4.0, [9.0, 5.0, 4.0])


def test_restarted_run_gets_new_summary(db: Session) -> None:
    run = make_running(db)
    tell(db, run, 1, 9.0, 5.0)
    run.attempt = 2
    attempts.apply_events(db, run, [STARTED, metrics_event(1, loss=8.0)], 2)
    assert (summary(db, run).count, summary(db, run).last) == (1, 8.0)

    attempts.close_exited(db, run, ProcessExit(exit_code=1))
    run_commands.restart(db, run.id or 0)
    assert metric_summaries.load_by_run(db, [run.id or 0]) == {}


def test_missing_summaries_are_backfilled(engine: Engine) -> None:
    with unit_of_work(engine) as db:
        run = make_finished_run(db)
        run.metrics = run.metrics | {"train_seconds": 3.0}
        before = summary(db, run).model_dump()
        db.exec(delete(MetricSummary).where(col(MetricSummary.run_id) == run.id))
    metric_summaries.backfill(engine)

    with read_session(engine) as db:
        assert summary(db, run).model_dump() == before
        assert summary(db, run, "train_seconds").last == 3.0


def test_list_keys_returns_every_metric_name(db: Session) -> None:
    attempts.apply_events(db, make_running(db), [metrics_event(1, loss=1.0, eval_loss=2.0)], 1)
    attempts.apply_events(db, make_running(db), [metrics_event(1, rating=1.0, loss=2.0)], 1)

    assert metric_summaries.list_keys(db) == ["eval_loss", "loss", "rating"]


def test_deleting_run_deletes_its_summaries(db: Session, tmp_path: Path) -> None:
    run = make_finished_run(db)
    runs.delete(db, run.id or 0, tmp_path)

    assert metric_summaries.list_keys(db) == []
