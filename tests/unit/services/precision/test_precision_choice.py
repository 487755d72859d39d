"""A recipe that leaves its precision to the studio: who chooses what, and when it is kept."""

from typing import Any

import pytest
from sqlmodel import Session, select

from studio.db.tables import Experiment, Run, RunEvent
from studio.recipe.search_space import Values
from studio.services import experiments
from studio.services.precision import recommendation
from studio.services.runs import runs
from studio.services.sweeps import sweeps
from studio.services.sweeps.sweep_preview import SweepPlan
from tests.support.factories import MACHINES, connect_worker, make_recipe

RECOMMENDED = [("plain", "fp32"), ("amx", "bf16"), ("t4", "fp16")]


def submitted(db: Session, overrides: dict[str, Any] | None = None, **recipe: Any) -> Run:  # noqa: ANN401 -- any field of a recipe
    made = experiments.create(db, "a try", make_recipe(**{"precision": "auto"} | recipe))
    return runs.submit(db, made, overrides)


def experiment_of(db: Session, run: Run) -> Experiment:
    return experiments.get(db, run.experiment_id)


@pytest.mark.parametrize(("machine", "mode"), RECOMMENDED)
def test_precision_follows_worker_machine(db: Session, machine: str, mode: str) -> None:
    connect_worker(db, machine)
    run = submitted(db)

    assert (run.recipe.precision, experiment_of(db, run).recipe.precision) == (mode, mode)
    assert MACHINES[machine].title in run.precision_reason
    assert recommendation.NO_WORKER_NOTE not in run.precision_reason


def test_precision_reason_notes_missing_worker(db: Session) -> None:
    assert submitted(db).precision_reason.endswith(recommendation.NO_WORKER_NOTE)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("chosen", ["fp32", "fp32_bf16_matmul"])
def test_explicit_precision_is_kept(db: Session, machine: str, chosen: str) -> None:
    connect_worker(db, machine)
    run = submitted(db, precision=chosen)

    assert (run.recipe.precision, run.precision_reason) == (chosen, "")


def test_precision_override_counts_as_explicit_choice(db: Session) -> None:
    connect_worker(db, "plain")
    run = submitted(db, {"precision": "bf16"})

    assert (run.recipe.precision, run.precision_reason) == ("bf16", "")


def test_override_may_set_precision_to_auto(db: Session) -> None:
    connect_worker(db, "plain")
    run = submitted(db, {"precision": "auto"}, precision="bf16")

    assert (run.recipe.precision, bool(run.precision_reason)) == ("fp32", True)


def test_new_run_of_experiment_adapts_precision_to_machine(db: Session) -> None:
    """Its precision was never chosen by anybody, so a new machine brings a new one."""
    connect_worker(db, "plain")
    first = submitted(db)
    connect_worker(db, "t4")
    second = runs.submit(db, experiment_of(db, first), {"optimisation": {"seed": 1}})

    assert (first.recipe.precision, second.recipe.precision) == ("fp32", "fp16")


def test_resubmitted_run_keeps_precision(db: Session) -> None:
    connect_worker(db, "plain")
    first = submitted(db)
    connect_worker(db, "t4")
    again = runs.resubmit(db, first.id or 0, {"optimisation": {"seed": 1}})
    other = runs.resubmit(db, first.id or 0, {"precision": "fp16"})

    assert (again.recipe.precision, again.precision_reason) == ("fp32", first.precision_reason)
    assert (other.recipe.precision, other.precision_reason) == ("fp16", "")


def test_all_runs_of_sweep_share_one_precision(db: Session) -> None:
    connect_worker(db, "plain")
    experiment = experiment_of(db, submitted(db))
    plan = SweepPlan(
        space={"optimisation.seed": Values(values=[1, 2])}, strategy="grid", parallel=2
    )
    sweep = sweeps.create(db, experiment, plan)
    connect_worker(db, "t4")
    sweeps.advance(db, sweep.id or 0)

    made = sweeps.list_runs(db, sweep.id or 0)
    assert [run.recipe.precision for run in made] == ["fp32", "fp32"]
    assert {run.precision_reason for run in made} == {experiment.precision_reason}


def test_training_machine_can_change_precision(db: Session) -> None:
    connect_worker(db, "plain")
    run = submitted(db)
    runs.recheck_precision(db, run, MACHINES["t4"])

    assert run.recipe.precision == "fp16"
    assert run.precision_reason.startswith("float16 mixed: Tesla T4")
    changed = db.exec(select(RunEvent).where(RunEvent.kind == "precision")).one()
    assert changed.data == {"precision": "fp16"}


@pytest.mark.parametrize(
    ("precision", "attempt"), [("bf16", 1), ("auto", 2)], ids=["chosen by a user", "has begun"]
)
def test_recheck_keeps_chosen_precision_and_started_runs(
    db: Session, precision: str, attempt: int
) -> None:
    connect_worker(db, "amx")
    run = submitted(db, precision=precision)
    run.attempt = attempt
    runs.recheck_precision(db, run, MACHINES["t4"])

    assert run.recipe.precision == "bf16"


def test_stored_recipes_never_contain_auto_precision(db: Session) -> None:
    run = submitted(db)
    db.expire_all()

    assert "auto" not in {run.recipe.precision, experiment_of(db, run).recipe.precision}
