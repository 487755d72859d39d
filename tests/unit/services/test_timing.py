"""How long a run will take, from those before it."""

import pytest

from studio.db.tables import DatasetVersion
from studio.services import timing
from studio.services.precedents import Lengths, Precedent
from tests.factories import make_recipe

DATA = DatasetVersion(
    dataset_id=1, number=1, kind="conversation", sha256="0", train_rows=105, validation_rows=5
)
LENGTHS = Lengths(longest=50, answer=20, rows=100, row_tokens=40)


def seen(step_seconds: float, tokens: int = 3200, beside: float | None = 10.0) -> Precedent:
    return Precedent(
        recipe=make_recipe(),
        told={},
        steps=10,
        tokens=tokens,
        step_seconds=step_seconds,
        beside_seconds=beside,
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
def test_steps_are_counted_as_transformers_counts_them(knobs: dict[str, float], steps: int) -> None:
    assert timing.count_steps(make_recipe(optimisation=knobs), 100) == steps


def test_without_a_run_of_its_kind_the_seconds_are_unknown() -> None:
    told = timing.of(make_recipe(optimisation={"max_steps": 10}), DATA, LENGTHS, [])

    assert (told.steps, told.tokens, told.seconds) == (10, 3200, None)


def test_seconds_grow_with_the_tokens_of_a_step() -> None:
    twice = make_recipe(optimisation={"max_steps": 10, "per_device_train_batch_size": 16})

    told = timing.of(twice, DATA, LENGTHS, [seen(2.0)])

    assert told.seconds == pytest.approx(10 * 2.0 * 2 + 10)


def test_what_was_seen_lies_within_the_interval() -> None:
    asked = make_recipe(optimisation={"max_steps": 10})

    told = timing.of(asked, DATA, LENGTHS, [seen(1.0), seen(2.0), seen(4.0)])

    assert told.least_seconds is not None
    assert told.most_seconds is not None
    assert told.least_seconds < 10 * 1.0 + 10
    assert told.seconds == pytest.approx(10 * 2.0 + 10)
    assert told.most_seconds > 10 * 4.0 + 10
