"""Submitting, finding, cancelling and deleting runs."""

import pytest
from sqlmodel import Session, select

from studio.db.states import RunStatus
from studio.db.tables import Metric, Run
from studio.errors import ConflictError, InvalidError, NotFoundError
from studio.services import experiments
from studio.services.runs import run_commands, runs
from studio.settings import Settings
from tests.support.factories import make_finished_run, make_recipe, make_run, make_running


def make_stopping(db: Session) -> Run:
    return run_commands.cancel(db, make_running(db).id or 0)


def test_submitted_run_is_queued(db: Session) -> None:
    run = make_run(db, "first try", precision="fp32")

    assert (run.status, run.name, run.recipe.precision) == (RunStatus.QUEUED, "first try", "fp32")


def test_overrides_change_run_but_not_experiment(db: Session) -> None:
    experiment = experiments.create(db, "e", make_recipe())
    run = runs.submit(db, experiment, {"precision": "fp16"})

    assert (run.recipe.precision, experiment.recipe.precision) == ("fp16", "bf16")


def test_invalid_override_is_named_in_error(db: Session) -> None:
    experiment = experiments.create(db, "e", make_recipe())
    with pytest.raises(InvalidError) as refused:
        runs.submit(db, experiment, {"optimisation": {"learning_rate": -1.0}})

    assert (refused.value.message, refused.value.param) == (
        "optimisation.learning_rate: Must be more than 0 and at most 1.",
        "optimisation.learning_rate",
    )


def test_unknown_model_is_rejected_with_suggestion(db: Session) -> None:
    with pytest.raises(InvalidError) as refused:
        make_run(db, base_model="startr")

    assert (refused.value.message, refused.value.param) == (
        "There is no model named startr.",
        "base_model",
    )
    assert refused.value.hint.startswith("Did you mean starter?")


def test_unknown_dataset_is_rejected(db: Session) -> None:
    with pytest.raises(InvalidError) as refused:
        make_run(db, dataset="nope")

    assert refused.value.param == "dataset"


def test_search_filters_by_name_and_status(db: Session) -> None:
    make_run(db, "alpha"), make_finished_run(db, "alphabet"), make_run(db, "beta")
    which = runs.RunFilter(search="ALPHA", status=RunStatus.SUCCEEDED)

    assert [run.name for run in runs.newest(db, which, limit=10)] == ["alphabet"]
    assert runs.count(db, which) == 1


def test_search_treats_percent_sign_literally(db: Session) -> None:
    make_run(db, "100 %")
    make_run(db, "plain")

    assert [run.name for run in runs.newest(db, runs.RunFilter(search="%"), limit=10)] == ["100 %"]


def test_next_page_continues_after_last_run(db: Session) -> None:
    for name in "abcde":
        make_run(db, name)
    first = runs.newest(db, runs.RunFilter(), limit=2)
    second = runs.newest(db, runs.RunFilter(), limit=2, before=first[-1].id)

    assert [run.name for run in (*first, *second)] == ["e", "d", "c", "b"]


def test_deleted_run_leaves_no_metrics_or_files(db: Session, settings: Settings) -> None:
    run_id = make_finished_run(db).id or 0
    folder = settings.runs / str(run_id)
    folder.mkdir()
    runs.delete(db, run_id, settings.runs)
    db.flush()

    assert db.exec(select(Metric)).all() == []
    assert not folder.exists()
    with pytest.raises(NotFoundError):
        runs.get(db, run_id)


def test_active_run_cannot_be_deleted(db: Session, settings: Settings) -> None:
    run = make_running(db)
    with pytest.raises(ConflictError) as refused:
        runs.delete(db, run.id or 0, settings.runs)

    assert (refused.value.message, refused.value.hint) == (
        f"Run {run.id} is running.",
        "Cancel it first.",
    )
