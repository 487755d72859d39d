"""Precision studies: queued whole or not at all, and reported as far as they have come."""

import math
from pathlib import Path

import pytest
from sqlalchemy import Engine, text
from sqlmodel import Session

from studio.db import migrate
from studio.db.session import unit_of_work
from studio.db.states import RunStatus
from studio.db.tables import Experiment, Run, Study
from studio.errors import InvalidError, NotFoundError
from studio.protocols.events import AlarmRaised, Event, Failed, Finished, Sampled, Started
from studio.services import experiments
from studio.services.runs import attempts, run_commands, runs, states
from studio.services.samples.sample_diff import DiffPiece
from studio.services.studies import studies, study_reports
from studio.services.studies.studies import StudyPlan
from studio.services.studies.study_statistics import PrecisionResult, SampleStats
from tests.support.factories import make_recipe, metrics_event


def make_experiment(db: Session) -> Experiment:
    return experiments.create(db, "tone", make_recipe(adapter={"kind": "full"}))


def make_study(db: Session, seeds: int = 1) -> list[Run]:
    """Queue fp32 and bf16 with some seeds, and return the runs: both modes of a seed together."""
    plan = StudyPlan(modes=("fp32", "bf16"), seeds=seeds, max_steps=10)
    return list(studies.list_runs(db, studies.create(db, make_experiment(db), plan).id or 0))


def train(db: Session, run: Run, *events: Event) -> None:
    """Start a run and let it tell what happens."""
    states.move(db, run, RunStatus.STARTING)
    started = Started(total_steps=10, resolved={"device_name": "Xeon"})
    attempts.apply_events(db, run, [started, *events], 1)


def validated(*losses: float) -> list[Event]:
    return [metrics_event(step, eval_loss=loss) for step, loss in enumerate(losses, 1)]


def finish(db: Session, run: Run, *losses: float) -> None:
    train(db, run, *validated(*losses), Finished(metrics={"eval_loss": losses[-1]}))


def empty(db: Session, folder: Path) -> None:
    """Make a study and delete its runs."""
    for run in make_study(db):
        run_commands.cancel(db, run.id or 0)
        runs.delete(db, run.id or 0, folder)
    db.flush()


def finding(db: Session, mode: str) -> PrecisionResult:
    return next(one for one in study_reports.build_report(db, 1).findings if one.precision == mode)


def answered(text: str, position: int = 0) -> Sampled:
    return Sampled(
        stage="after", step=10, position=position, prompt="Q?", reference="R", answer=text
    )


def test_study_queues_every_precision_with_every_seed(db: Session) -> None:
    made = make_study(db, seeds=2)

    assert [(run.name, run.recipe.precision, run.recipe.optimisation.seed) for run in made] == [
        ("tone fp32 s0", "fp32", 0),
        ("tone bf16 s0", "bf16", 0),
        ("tone fp32 s1", "fp32", 1),
        ("tone bf16 s1", "bf16", 1),
    ]


def test_study_max_steps_override_recipe(db: Session) -> None:
    made = make_study(db)

    assert {run.recipe.optimisation.max_steps for run in made} == {10}


def test_study_runs_only_warn_about_broken_numerics(db: Session) -> None:
    made = make_study(db)

    assert {run.recipe.numerics.guard for run in made} == {"warn"}


def test_study_without_max_steps_uses_recipe_value(db: Session) -> None:
    experiment = experiments.create(db, "tone", make_recipe(optimisation={"max_steps": 7}))
    study = studies.create(db, experiment, StudyPlan(modes=("fp32", "bf16"), seeds=1))

    made = studies.list_runs(db, study.id or 0)
    assert {run.recipe.optimisation.max_steps for run in made} == {7}


def test_long_run_name_leaves_space_for_precision(db: Session) -> None:
    experiment = experiments.create(db, "n" * 200, make_recipe())
    study = studies.create(db, experiment, StudyPlan(modes=("fp32", "bf16"), seeds=1))

    names = [run.name for run in studies.list_runs(db, study.id or 0)]
    assert names == ["n" * 192 + " fp32 s0", "n" * 192 + " bf16 s0"]


@pytest.mark.parametrize(
    ("modes", "seeds", "said"),
    [
        (("bf16", "fp16"), 1, "A study needs fp32 and at least one other precision."),
        (("fp32", "fp32"), 1, "A study needs fp32 and at least one other precision."),
        (("fp32", "fp7"), 1, "There is no precision named fp7."),
        (
            ("fp32", "bf16"),
            26,
            "A study can have 1 to 50 runs; this would be 2 precisions with 26 seeds.",
        ),
    ],
)
def test_invalid_study_plan_is_rejected(
    db: Session, modes: tuple[str, ...], seeds: int, said: str
) -> None:
    with pytest.raises(InvalidError) as refused:
        studies.create(db, make_experiment(db), StudyPlan(modes=modes, seeds=seeds))

    assert refused.value.message == said


def test_rejected_study_leaves_no_records(db: Session) -> None:
    experiment = make_experiment(db)
    with pytest.raises(InvalidError):
        studies.create(db, experiment, StudyPlan(modes=("fp32", "bf16"), max_steps=-1))

    assert (list(studies.newest(db, limit=9)), runs.count(db, runs.RunFilter())) == ([], 0)


def test_recipe_that_cannot_run_gives_reason(db: Session) -> None:
    recipe = make_recipe(base_model="moon")

    assert studies.explain_refusal(db, recipe, "fp32").startswith("There is no model named moon.")


def test_finished_runs_are_compared_by_final_loss(db: Session) -> None:
    for run, last in zip(make_study(db, seeds=2), (2.0, 2.25, 3.0, 3.25), strict=True):
        finish(db, run, 5.0, last)

    one = finding(db, "bf16")
    assert (one.step, one.gap, one.versus) == (None, SampleStats(0.25, 0.0, 2), "within")


def test_running_runs_are_compared_at_last_common_step(db: Session) -> None:
    reference, mode = make_study(db)
    train(db, reference, *validated(5.0, 4.0, 3.0))
    train(db, mode, *validated(5.0, 4.5))

    one = finding(db, "bf16")
    assert (one.step, one.gap, study_reports.build_report(db, 1).going) == (
        2,
        SampleStats(0.5, None, 1),
        2,
    )


def test_new_study_has_report(db: Session) -> None:
    make_study(db)

    one, report = finding(db, "bf16"), study_reports.build_report(db, 1)
    assert (one.versus, one.loss, report.answers, report.devices) == ("nothing", None, None, [])


def test_study_with_deleted_runs_has_report(db: Session, tmp_path: Path) -> None:
    empty(db, tmp_path)

    assert study_reports.build_report(db, 1).findings == []


def test_failed_runs_are_counted(db: Session) -> None:
    reference, mode = make_study(db)
    finish(db, reference, 5.0, 2.0)
    train(db, mode, *validated(5.0), Failed(code="died", message="It died."))

    one = finding(db, "bf16")
    assert (one.failed, one.runs, one.gap) == (1, 1, None)


def test_non_finite_values_are_counted_in_report(db: Session) -> None:
    reference, mode = make_study(db)
    finish(db, reference, 5.0, 2.0)
    alarm = AlarmRaised(code="nan", message="The loss is no number.", step=1)
    numbers = metrics_event(1, loss=math.nan, tokens_per_second=math.inf, skipped_steps=math.nan)
    train(db, mode, numbers, alarm, *validated(5.0, math.nan))
    attempts.apply_events(db, mode, [Finished(metrics={"eval_loss": math.nan})], 2)

    one = finding(db, "bf16")
    assert (one.not_finite, one.broken_steps, one.alarms, one.speed, one.skipped_steps) == (
        1,
        1,
        1,
        None,
        0,
    )


def test_gaps_are_reported_for_each_step(db: Session) -> None:
    reference, mode = make_study(db)
    finish(db, reference, 5.0, 2.0)
    finish(db, mode, 5.5, 2.25)

    curves = study_reports.build_report(db, 1).curves["eval_loss"]
    assert (curves.x, curves.series["bf16"].mean, curves.series["fp32"].max) == (
        [1, 2],
        [0.5, 0.25],
        [None, None],
    )


def test_answers_are_compared_with_reference_answers(db: Session) -> None:
    made = make_study(db, seeds=2)
    for run, said in zip(made, ("yes sir", "no sir", "yes", "yes"), strict=True):
        train(db, run, answered(said), answered("same", 1))

    found = study_reports.build_report(db, 1).answers
    assert found is not None
    assert (found.prompts, found.by_mode, found.between_seeds) == (2, {"bf16": 1}, 1)
    assert [row.others["bf16"] for row in found.differing] == [
        [DiffPiece("gone", "yes "), DiffPiece("added", "no "), DiffPiece("same", "sir")]
    ]


def test_deleting_study_keeps_its_runs(db: Session) -> None:
    make_study(db)
    studies.delete(db, 1)
    db.flush()
    db.expire_all()

    assert [run.study_id for run in runs.newest(db, runs.RunFilter(), limit=9)] == [None, None]
    with pytest.raises(NotFoundError):
        studies.get(db, 1)


def test_deleting_experiment_deletes_its_empty_studies(db: Session, tmp_path: Path) -> None:
    empty(db, tmp_path)
    experiments.delete(db, 1)
    db.flush()
    db.expire_all()

    assert db.get(Study, 1) is None


def test_downgrade_keeps_study_runs_and_metrics(engine: Engine) -> None:
    with unit_of_work(engine) as db:
        finish(db, make_study(db)[0], 5.0, 2.0)
    migrate.downgrade(engine, "0001")
    migrate.upgrade(engine)

    with engine.connect() as connection:
        counted = [
            connection.execute(text(f"SELECT count(*) FROM {table}")).scalar_one()  # noqa: S608 -- fixed names
            for table in ("run", "metric", "study")
        ]
    assert counted == [2, 2, 0]
