"""What must hold of the time left of a run, however fast its steps are."""

from datetime import UTC, datetime, timedelta
from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from studio.db.states import RunStatus
from studio.db.tables import Run
from studio.services.estimates import run_progress
from tests.support.factories import make_recipe

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
RECIPE = make_recipe()

paces = st.lists(st.integers(1, 10_000), min_size=3, max_size=60)
"""Milliseconds of each step behind the first."""


def left(steps: int, of_steps: int, passed: float, resumed: int = 0) -> float | None:
    """Return the seconds left as they are told just after a step."""
    run = Run(experiment_id=1, name="r", recipe=RECIPE, status=RunStatus.RUNNING)
    run.first_step_at, run.resumed_step = BEGAN, resumed
    run.step, run.total_steps = steps, of_steps
    return run_progress.measure(run, BEGAN + timedelta(seconds=passed)).eta_seconds


def told(milliseconds: list[int], resumed: int) -> list[tuple[int, float, float]]:
    """Return after each step how many are left, the seconds told, and the true ones."""
    passed = [one / 1000 for one in accumulate(milliseconds)]
    count = len(passed)
    found = []
    for done, now in enumerate(passed, 1):
        seconds = left(resumed + 1 + done, resumed + 1 + count, now, resumed)
        assert seconds is not None
        found.append((count - done, seconds, passed[-1] - now))
    return found


@given(paces, st.integers(0, 1000))
def test_time_left_error_shrinks_to_zero_by_last_step(
    milliseconds: list[int], resumed: int
) -> None:
    apart = (max(milliseconds) - min(milliseconds)) / 1000
    seen = told(milliseconds, resumed)

    assert [one for one in seen if abs(one[1] - one[2]) > one[0] * apart + 1e-6] == []
    assert seen[-1][1:] == (0, 0)


@given(st.integers(1, 10_000), st.integers(3, 60))
def test_time_left_is_exact_for_evenly_paced_steps(pace: int, count: int) -> None:
    seen = told([pace] * count, 0)

    assert [one for one in seen if abs(one[1] - one[2]) > 1e-6] == []
