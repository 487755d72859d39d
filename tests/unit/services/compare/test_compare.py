"""What differs between runs, and what came of it."""

from collections.abc import Sequence
from typing import Any

import pytest
from sqlmodel import Session

from studio.db.states import RunStatus
from studio.db.tables import Run
from studio.errors import InvalidError
from studio.protocols.events import Event
from studio.services.compare import compare
from studio.services.compare.comparable_metrics import MetricPair
from studio.services.compare.compare import MetricCell
from studio.services.compare.run_labels import label_runs
from studio.services.runs import attempts, states
from tests.support.factories import make_finished_run, make_running, metrics_event


def test_only_differing_settings_are_listed(db: Session) -> None:
    ids = [make_finished_run(db, precision=name).id or 0 for name in ("bf16", "fp32")]
    made = compare.compare(db, ids)

    assert made.differing == ("precision",)
    assert made.settings["precision"] == ["bf16", "fp32"]


def test_deltas_are_relative_to_baseline(db: Session) -> None:
    runs = [make_running(db), make_running(db, precision="fp32")]
    for run, loss in zip(runs, (2.0, 1.5), strict=True):
        attempts.apply_events(
            db, run, [metrics_event(1, loss=loss, tokens_per_second=loss * 100)], 1
        )
    made = compare.compare(db, [run.id or 0 for run in runs])

    assert made.metrics["loss"] == [
        MetricCell(value=2.0),
        MetricCell(
            value=1.5,
            delta=-0.5,
            noise="unknown",
            reading=MetricPair(value=1.5, baseline=2.0, step=1, steps=10),
        ),
    ]
    assert made.metrics["tokens_per_second"][1].delta == -50


def events_at(step: int, loss: float) -> list[Event]:
    told: list[Event] = [
        metrics_event(step, loss=loss, step_seconds=loss, tokens_per_second=100 / loss)
    ]
    return told if step % 5 else [*told, metrics_event(step, eval_loss=loss)]


def train(db: Session, losses: Sequence[float], *, is_done: bool = True, **changes: Any) -> Run:  # noqa: ANN401 -- any field of a recipe
    """Make a run that tells a loss at each step and a validation at every fifth."""
    run = make_running(db, **changes)
    told = [event for step, loss in enumerate(losses, 1) for event in events_at(step, loss)]
    attempts.apply_events(db, run, told, 1)
    if is_done:
        states.move(db, run, RunStatus.SUCCEEDED)
    return run


def cell(db: Session, metric: str, *runs: Run) -> MetricCell:
    """Return what the last of some runs shows beside the first."""
    return compare.compare(db, [run.id or 0 for run in runs]).metrics[metric][-1]


def test_running_run_is_compared_at_its_latest_step(db: Session) -> None:
    done = train(db, [3 - step / 20 for step in range(40)], precision="fp32")
    live = train(db, [3 - step / 20 for step in range(13)], is_done=False)

    validation, loss = (cell(db, name, done, live) for name in ("eval_loss", "loss"))

    assert (validation.value, validation.delta, validation.verdict) == (2.55, 0, "")
    assert validation.reading == MetricPair(value=2.55, baseline=2.55, step=10)
    assert loss.reading is not None
    assert (loss.delta, loss.reading.step, loss.reading.steps) == (0, 13, 10)


def test_finished_runs_are_compared_by_mean_of_last_steps(db: Session) -> None:
    base = train(db, [2.0, 1.0] * 10)
    other = train(db, [1.0, 2.0] * 10, precision="fp32")

    found = cell(db, "loss", base, other)

    # The last batch says 1 more, the last ten say nothing.
    assert (found.value, found.delta, found.verdict) == (2.0, 0.0, "")


def test_difference_without_repeats_is_undecided(db: Session) -> None:
    found = cell(db, "eval_loss", train(db, [2.0] * 5), train(db, [2.013] * 5, precision="fp32"))

    assert (found.noise, found.verdict, found.is_undecided) == ("unknown", "", True)


def test_difference_beyond_spread_of_repeats_is_judged(db: Session) -> None:
    seeds: list[dict[str, Any]] = [{"optimisation": {"seed": seed}} for seed in (1, 2, 3)]
    base = [train(db, [2 + seed / 100] * 5, **change) for seed, change in enumerate(seeds)]
    experiment = base[0].experiment_id
    for run in base:
        run.experiment_id = experiment
    far = train(db, [3.0] * 5, precision="fp32")
    near = train(db, [2.015] * 5, precision="fp32", adapter={"kind": "full"})

    apart, alike = (cell(db, "eval_loss", base[0], run) for run in (far, near))

    assert (apart.noise, apart.verdict) == ("beyond", "worse")
    assert (alike.noise, alike.verdict) == ("within", "")


def test_step_seconds_are_not_judged_across_batch_sizes(db: Session) -> None:
    seeds: list[dict[str, Any]] = [
        {"seed": seed, "per_device_train_batch_size": 8} for seed in (1, 2, 3)
    ]
    base = [train(db, [2.0 + one["seed"] / 1000] * 5, optimisation=one) for one in seeds]
    for run in base:
        run.experiment_id = base[0].experiment_id
    larger = train(db, [4.0] * 5, optimisation={"per_device_train_batch_size": 16})
    slower = train(db, [4.0] * 5, precision="fp32")

    assert cell(db, "step_seconds", base[0], larger).verdict == ""
    assert cell(db, "tokens_per_second", base[0], larger).verdict == "worse"
    assert cell(db, "step_seconds", base[0], slower).verdict == "worse"


def test_runs_are_labelled_by_what_differs(db: Session) -> None:
    rates = [1e-4, 2e-4]
    runs = [
        make_finished_run(db, precision=precision, optimisation={"learning_rate": rate})
        for precision, rate in zip(("bf16", "fp32"), rates, strict=True)
    ]

    assert list(label_runs(runs).values()) == [
        "bfloat16 \N{MIDDLE DOT} lr 1e-4",
        "float32 \N{MIDDLE DOT} lr 2e-4",
    ]


def test_seed_is_named_only_if_labels_would_repeat(db: Session) -> None:
    runs = [make_finished_run(db, optimisation={"seed": seed}) for seed in (1, 2)]
    other = make_finished_run(db, precision="fp32", optimisation={"seed": 3})

    assert list(label_runs(runs).values()) == ["seed 1", "seed 2"]
    assert list(label_runs([runs[0], other]).values()) == ["bfloat16", "float32"]


def test_runs_with_same_name_and_recipe_keep_their_name(db: Session) -> None:
    runs = [make_finished_run(db, "quick-1"), make_finished_run(db, "quick-1")]

    assert set(label_runs(runs).values()) == {"quick-1"}


def test_baseline_can_be_chosen(db: Session) -> None:
    first, second = make_finished_run(db), make_finished_run(db)

    assert compare.compare(db, [first.id or 0, second.id or 0], second.id).base is second


def test_baseline_must_be_among_compared_runs(db: Session) -> None:
    run = make_finished_run(db).id or 0
    with pytest.raises(InvalidError) as refused:
        compare.compare(db, [run], 99)

    assert refused.value.message == "Run 99 is not among the runs compared."
