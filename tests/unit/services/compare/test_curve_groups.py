"""Runs in groups: one line of several."""

import math

from sqlmodel import Session

from studio.db.tables import Run
from studio.services.compare import seed_noise
from studio.services.compare.seed_noise import CurveGroup
from studio.services.metrics import metrics
from studio.services.runs import attempts
from tests.support.factories import make_running, metrics_event


def told(db: Session, seed: int, points: dict[int, float], precision: str = "bf16") -> Run:
    run = make_running(db, precision, precision=precision, optimisation={"seed": seed})
    attempts.apply_events(db, run, [metrics_event(step, loss=x) for step, x in points.items()], 1)
    return run


def test_runs_differing_only_in_seed_form_one_group(db: Session) -> None:
    runs = [told(db, 1, {1: 1.0}), told(db, 2, {1: 2.0}), told(db, 1, {1: 3.0}, "fp32")]

    assert seed_noise.group_runs(runs, "seed") == [
        CurveGroup(label="bfloat16", runs=[1, 2]),
        CurveGroup(label="float32", runs=[3]),
    ]


def test_runs_can_be_grouped_by_any_setting(db: Session) -> None:
    runs = [told(db, 1, {1: 1.0}), told(db, 2, {1: 2.0})]

    assert [(one.label, one.runs) for one in seed_noise.group_runs(runs, "optimisation.seed")] == [
        ("seed = 1", [1]),
        ("seed = 2", [2]),
    ]


def test_group_curve_has_mean_min_and_max(db: Session) -> None:
    runs = [told(db, 1, {1: 1.0, 2: 2.0}), told(db, 2, {1: 3.0, 2: 6.0})]
    curves = metrics.load_curves(db, [1, 2], ["loss"])
    (line,) = seed_noise.merge_curves(curves, seed_noise.group_runs(runs, "seed"), ["loss"])["loss"]

    assert (line.mean, line.min, line.max) == ([2.0, 4.0], [1.0, 2.0], [3.0, 6.0])


def test_curves_are_interpolated_but_never_extrapolated(db: Session) -> None:
    runs = [told(db, 1, {1: 1.0, 3: 3.0}), told(db, 2, {1: 1.0, 2: 4.0, 3: 3.0, 4: 9.0})]
    curves = metrics.load_curves(db, [1, 2], ["loss"])
    (line,) = seed_noise.merge_curves(curves, seed_noise.group_runs(runs, "seed"), ["loss"])["loss"]

    assert line.mean == [1.0, 3.0, 3.0, 9.0]


def test_group_names_first_run_with_non_finite_value(db: Session) -> None:
    runs = [told(db, 1, {1: 1.0, 3: math.nan}), told(db, 2, {1: 1.0, 2: math.nan})]
    curves = metrics.load_curves(db, [1, 2], ["loss"])
    (line,) = seed_noise.merge_curves(curves, seed_noise.group_runs(runs, "seed"), ["loss"])["loss"]

    assert (line.non_finite, line.first_broken, line.broken_run) == ([2, 3], 2, 2)
