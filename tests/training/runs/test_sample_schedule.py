"""When a model answers on its way."""

import pytest

from studio.training.evaluation.sample_answers import is_due

pytestmark = pytest.mark.slow


def due(steps: int, every: int, times: int) -> list[int]:
    return [step for step in range(0, steps, every) if is_due(step, steps, every, times)]


@pytest.mark.parametrize(
    ("steps", "every", "times", "found"),
    [
        (100, 10, 4, [20, 40, 60, 80]),
        (100, 10, 0, []),
        (100, 10, 100, [*range(10, 100, 10)]),
        (30, 15, 4, [15]),
        (100, 30, 4, [30, 60, 90]),
        (1000, 7, 3, [252, 504, 756]),
    ],
)
def test_samples_are_spread_evenly_over_validations(
    steps: int, every: int, times: int, found: list[int]
) -> None:
    assert due(steps, every, times) == found
