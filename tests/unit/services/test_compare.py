"""What differs between runs, and what came of it."""

import pytest
from sqlmodel import Session

from studio.errors import InvalidError
from studio.services import attempts, compare
from studio.services.compare import Cell
from tests.factories import make_done, make_running, progressed


def test_only_differing_keys_differ(db: Session) -> None:
    ids = [make_done(db, precision=name).id or 0 for name in ("bf16", "fp32")]
    made = compare.compare(db, ids)

    assert made.differing == ("precision",)
    assert made.settings["precision"] == ["bf16", "fp32"]


def test_deltas_are_against_the_baseline(db: Session) -> None:
    runs = [make_running(db), make_running(db, precision="fp32")]
    for run, loss in zip(runs, (2.0, 1.5), strict=True):
        attempts.follow(db, run, [progressed(1, loss=loss, tokens_per_second=loss * 100)], 1)
    made = compare.compare(db, [run.id or 0 for run in runs])

    assert made.metrics["loss"] == [
        Cell(value=2.0),
        Cell(value=1.5, delta=-0.5, verdict="better", noise="unknown"),
    ]
    assert made.metrics["tokens_per_second"][1] == Cell(
        value=150, delta=-50, verdict="worse", noise="unknown"
    )


def test_another_baseline_can_be_named(db: Session) -> None:
    first, second = make_done(db), make_done(db)

    assert compare.compare(db, [first.id or 0, second.id or 0], second.id).base is second


def test_a_baseline_must_be_among_the_runs(db: Session) -> None:
    run = make_done(db).id or 0
    with pytest.raises(InvalidError) as refused:
        compare.compare(db, [run], 99)

    assert refused.value.message == "Run 99 is not among the runs compared."
