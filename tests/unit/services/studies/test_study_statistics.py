"""What made numbers show: gaps against seed noise, and improvement lost."""

import math

import pytest

from studio.services.metrics.metrics import Series
from studio.services.studies import study_statistics
from studio.services.studies.study_reports import compute_gaps
from studio.services.studies.study_statistics import (
    GapVerdict,
    PrecisionResult,
    SampleStats,
    State,
    StudyRun,
)

NAN = math.nan


def done(precision: str, seed: int, first: float, last: float) -> StudyRun:
    """Make a finished run, validated at steps 1 and 10."""
    return StudyRun(
        precision=precision, seed=seed, state="done", final=last, validations={1: first, 10: last}
    )


def three(precision: str, *lasts: float, first: float = 3.0) -> list[StudyRun]:
    return [done(precision, seed, first, last) for seed, last in enumerate(lasts)]


def found(trials: list[StudyRun], mode: str = "bf16") -> PrecisionResult:
    return next(one for one in study_statistics.compare_precisions(trials) if one.precision == mode)


def line(*values: float | None) -> Series:
    return Series(mean=list(values), min=list(values), max=list(values))


def test_summary_uses_only_finite_values() -> None:
    assert study_statistics.summarise([1.0, 3.0, None, NAN, math.inf]) == SampleStats(
        2.0, math.sqrt(2), 2
    )


def test_single_value_has_no_spread() -> None:
    assert study_statistics.summarise([1.0]) == SampleStats(1.0, None, 1)


def test_summary_of_no_finite_values_is_none() -> None:
    assert study_statistics.summarise([NAN, None]) is None


@pytest.mark.parametrize(
    ("gap", "noise", "told"),
    [
        (SampleStats(0.1, 0.0, 2), SampleStats(2.0, 0.1, 2), "within"),
        (SampleStats(-0.1, 0.0, 2), SampleStats(2.0, 0.1, 2), "within"),
        (SampleStats(0.2, 0.0, 2), SampleStats(2.0, 0.1, 2), "above"),
        (SampleStats(-0.2, 0.0, 2), SampleStats(2.0, 0.1, 2), "below"),
        (SampleStats(0.0, None, 1), SampleStats(2.0, 0.1, 2), "unknown"),
        (SampleStats(0.0, 0.0, 2), SampleStats(2.0, None, 1), "unknown"),
        (SampleStats(0.0, 0.0, 2), None, "unknown"),
        (None, SampleStats(2.0, 0.1, 2), "nothing"),
    ],
)
def test_gap_is_judged_only_with_two_seeds_each(
    gap: SampleStats | None, noise: SampleStats | None, told: GapVerdict
) -> None:
    assert study_statistics.judge_gap(gap, noise) == told


@pytest.mark.parametrize(
    ("mode_ends", "noise", "share"),
    [(2.0, 0.0, 0.0), (2.75, 0.0, 0.75), (3.5, 0.0, 1.5), (1.5, 0.0, -0.5), (2.75, 1.0, None)],
)
def test_lost_improvement_is_share_of_reference_improvement(
    mode_ends: float, noise: float, share: float | None
) -> None:
    assert study_statistics.improvement_lost([(3.0, 3.0)], [(mode_ends, 2.0)], noise) == share


def test_lost_improvement_is_undefined_without_reference_improvement() -> None:
    assert study_statistics.improvement_lost([(2.0, 2.0)], [(2.5, 2.0)], 0) is None


def test_gap_is_computed_between_runs_with_same_seed() -> None:
    one = found([*three("fp32", 1.0, 2.0, 3.0), *three("bf16", 1.5, 2.5, 3.5)])

    assert (one.gap, one.noise, one.versus) == (
        SampleStats(0.5, 0.0, 3),
        SampleStats(2.0, 1.0, 3),
        "within",
    )


def test_stalled_precision_reports_lost_improvement() -> None:
    one = found([*three("fp32", 2.0, 2.0), *three("bf16", 2.75, 2.75)])

    assert (one.versus, one.lost, one.lost_since) == ("above", 0.75, 1)


def test_reference_precision_comes_first() -> None:
    modes = [
        one.precision
        for one in study_statistics.compare_precisions([*three("bf16", 1), *three("fp32", 1)])
    ]

    assert modes == ["fp32", "bf16"]


def test_failed_runs_are_counted_but_not_measured() -> None:
    broken = StudyRun(precision="bf16", seed=0, state="failed", validations={1: 3.0})
    one = found([*three("fp32", 1.0, 2.0), broken, done("bf16", 1, 3.0, 2.25)])

    assert (one.failed, one.runs, one.gap, one.versus) == (
        1,
        2,
        SampleStats(0.25, None, 1),
        "unknown",
    )


def test_seed_with_failed_reference_is_not_compared() -> None:
    broken = StudyRun(precision="fp32", seed=0, state="failed", validations={1: 3.0})
    one = found([broken, *three("bf16", 1.0)])

    assert (one.loss, one.gap, one.versus) == (SampleStats(1.0, None, 1), None, "nothing")


def test_running_runs_are_compared_at_last_common_step() -> None:
    going = [
        StudyRun(precision="fp32", seed=0, state="going", validations={1: 3.0, 2: 2.5, 3: 2.0}),
        StudyRun(precision="bf16", seed=0, state="going", validations={1: 3.0, 2: 2.75}),
    ]
    one = found(going)

    assert (one.step, one.gap, one.lost) == (2, SampleStats(0.25, None, 1), 0.5)


def test_finished_pairs_are_preferred_over_running_pairs() -> None:
    going = [
        StudyRun(precision=mode, seed=1, state="going", validations={1: 9.0})
        for mode in ("fp32", "bf16")
    ]
    one = found([*three("fp32", 2.0), *three("bf16", 2.5), *going])

    assert (one.step, one.gap) == (None, SampleStats(0.5, None, 1))


def test_non_finite_losses_are_counted_separately() -> None:
    one = found([*three("fp32", 2.0, 2.0), *three("bf16", NAN, 2.5)])

    assert (one.not_finite, one.gap, one.loss) == (
        1,
        SampleStats(0.5, None, 1),
        SampleStats(2.5, None, 1),
    )


def test_broken_run_is_excluded_from_lost_improvement() -> None:
    whole, broken = done("bf16", 0, 3.0, 2.5), done("bf16", 1, 9.0, NAN)
    one = found([done("fp32", 0, 3.0, 2.0), done("fp32", 1, 9.0, 2.0), whole, broken])

    assert one.lost == 0.5


def cost(precision: str, seed: int, speed: float, size: float, state: State = "done") -> StudyRun:
    return StudyRun(
        precision=precision,
        seed=seed,
        state=state,
        final=2.0,
        validations={1: 3.0},
        tokens_per_second=speed,
        peak_memory_bytes=size,
    )


def test_speed_and_memory_are_ratios_to_reference() -> None:
    one = found([cost("fp32", 0, 100, 8), cost("bf16", 0, 150, 6)])

    assert (one.speed_ratio, one.memory_ratio) == (SampleStats(1.5, None, 1), 0.75)


def test_speeds_are_compared_per_seed() -> None:
    one = found(
        [
            *(cost("fp32", seed, speed, 8) for seed, speed in enumerate((100, 200))),
            *(cost("bf16", seed, speed, 8) for seed, speed in enumerate((150, 300))),
        ]
    )

    assert one.speed_ratio == SampleStats(1.5, 0.0, 2)


def test_costs_use_only_finished_runs_when_available() -> None:
    one = found(
        [
            cost("fp32", 0, 100, 8),
            cost("bf16", 0, 150, 6),
            cost("bf16", 1, 999, 99, state="going"),
            cost("bf16", 2, 999, 99, state="failed"),
        ]
    )

    assert (one.speed, one.memory) == (SampleStats(150, None, 1), 6)


def test_empty_study_has_no_findings() -> None:
    assert study_statistics.compare_precisions([]) == []


def test_gaps_are_computed_per_step_and_seed() -> None:
    lines = {
        ("fp32", 0): line(3.0, 2.0),
        ("fp32", 1): line(4.0, 2.0),
        ("bf16", 0): line(3.5, 2.0),
        ("bf16", 1): line(4.0, None),
    }
    series = compute_gaps(lines)

    assert (series["bf16"].mean, series["bf16"].min, series["bf16"].max) == (
        [0.25, 0.0],
        [0.0, 0.0],
        [0.5, 0.0],
    )


def test_reference_band_is_its_own_spread() -> None:
    series = compute_gaps({("fp32", 0): line(1.0, 2.0), ("fp32", 1): line(3.0, None)})["fp32"]

    assert (series.mean, series.min, series.max) == (
        [0.0, 0.0],
        [-math.sqrt(2), None],
        [math.sqrt(2), None],
    )


def test_gaps_are_empty_without_reference() -> None:
    assert compute_gaps({("bf16", 0): line(1.0)}) == {}
