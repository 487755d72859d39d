"""The evaluation that follows a run by itself, and the sweeps that search for its value."""

from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine
from sqlmodel import Session, select

from studio.db.evaluations import AnswerSet, Evaluation
from studio.db.session import unit_of_work
from studio.db.states import RunStatus, SweepStatus
from studio.db.tables import Run, RunEvent, Sweep
from studio.errors import InvalidError
from studio.recipe.search_space import SearchSpace, Values
from studio.services import experiments
from studio.services.evaluations import automatic
from studio.services.runs import run_events, runs
from studio.services.sweeps import sweep_preview, sweeps
from studio.services.sweeps.sweep_preview import SweepPlan
from studio.settings import Settings
from tests.support import evaluated_runs
from tests.support.factories import make_finished_run, make_recipe
from tests.support.page_reader import parse_page

EXPECTED = [f"Answer {number}" for number in range(20)]
RATES: SearchSpace = {"optimisation.learning_rate": Values(values=[1e-4, 2e-4, 3e-4])}


@pytest.fixture
def evaluating(settings: Settings) -> Settings:
    return settings.model_copy(update={"evaluate_runs": True})


def make_run(db: Session, settings: Settings, **changes: Any) -> Run:  # noqa: ANN401 -- of a recipe
    run = make_finished_run(db, **{"adapter": {"kind": "lora"}} | changes)
    evaluated_runs.lay_out(db, settings, run)
    return run


def finish(db: Session, evaluation: Evaluation, right: int) -> None:
    """End an evaluation in which the run's model answers so many rows as expected."""
    tuned = [*EXPECTED[:right], *["No"] * (len(EXPECTED) - right)]
    for set_id, answers in ((evaluation.base_id, ["No"] * 20), (evaluation.tuned_id, tuned)):
        evaluated_runs.finish(db, db.get_one(AnswerSet, set_id), answers, EXPECTED, 1.0)


@pytest.mark.parametrize(("after_training", "rows"), [("quick", 64), ("full", 1000), ("none", 0)])
def test_recipe_says_how_many_rows_are_asked(
    engine: Engine, evaluating: Settings, after_training: str, rows: int
) -> None:
    with unit_of_work(engine) as db:
        run = make_run(db, evaluating, evaluation={"after_training": after_training})
        evaluation = automatic.queue_for_run(db, evaluating, run)

        assert (evaluation.rows if evaluation else 0) == rows


def test_operator_switches_it_off(engine: Engine, settings: Settings) -> None:
    with unit_of_work(engine) as db:
        assert automatic.queue_for_run(db, settings, make_run(db, settings)) is None
        assert not db.exec(select(Evaluation)).all()


def test_method_that_writes_nothing_has_none(engine: Engine, evaluating: Settings) -> None:
    with unit_of_work(engine) as db:
        run = make_run(db, evaluating)
        run.recipe = make_recipe(method="reward")

        assert automatic.queue_for_run(db, evaluating, run) is None
        assert not db.exec(select(RunEvent).where(RunEvent.kind == "unevaluated")).all()


def test_reason_why_a_run_cannot_be_evaluated_is_in_its_history(
    engine: Engine, evaluating: Settings
) -> None:
    with unit_of_work(engine) as db:
        run = make_run(db, evaluating)
        (evaluating.runs / str(run.id) / "train.jsonl").unlink(missing_ok=True)
        job = evaluating.runs / str(run.id) / "job.json"
        job.unlink()

        assert automatic.queue_for_run(db, evaluating, run) is None
        (event,) = db.exec(select(RunEvent).where(RunEvent.kind == "unevaluated")).all()
        sentence = run_events.to_event(event).words
    assert sentence.startswith("Not evaluated. The files of run")


def test_figures_become_metrics_of_the_run(engine: Engine, evaluating: Settings) -> None:
    with unit_of_work(engine) as db:
        run = make_run(db, evaluating)
        evaluation = automatic.queue_for_run(db, evaluating, run)
        assert evaluation is not None
        finish(db, evaluation, right=15)

        assert run.metrics["evaluation_exact_share"] == 0.75
        assert run.metrics["evaluation_loss"] == pytest.approx(
            sum(0.5 + row / 200 for row in range(20)) / 20
        )


def test_page_shows_progress_and_then_the_verdict(
    client: TestClient, engine: Engine, evaluating: Settings
) -> None:
    with unit_of_work(engine) as db:
        run = make_run(db, evaluating)
        evaluation = automatic.queue_for_run(db, evaluating, run)
        assert evaluation is not None
        run_id, evaluation_id = run.id, evaluation.id
    line = parse_page(client.get(f"/runs/{run_id}").text).one("div", id="evaluation-line")
    with unit_of_work(engine) as db:
        finish(db, db.get_one(Evaluation, evaluation_id), right=15)
    after = parse_page(client.get(f"/runs/{run_id}").text).one("div", id="evaluation-line")

    assert line.one("progress").attributes["aria-label"] == "Progress of the evaluation"
    assert line.attributes["hx-get"] == f"/runs/{run_id}"
    assert "Better: 0 % → 75 % exact answers on 20 rows" in after.text
    assert "hx-get" not in after.attributes


def test_card_says_which_rows_are_in_the_training_data(
    client: TestClient, engine: Engine, settings: Settings
) -> None:
    with unit_of_work(engine) as db:
        run = make_run(db, settings)
        tuned = [*EXPECTED[:15], *["No"] * 5]
        evaluated_runs.evaluate(db, settings, run.id or 0, ["No"] * 20, tuned, EXPECTED, seen=4)
        address = f"/runs/{run.id}"
    line = parse_page(client.get(address).text).one("div", id="evaluation-line").text

    assert "4 of 20 rows can also be found in the training data" in line
    assert "Without these rows: Better: 0 % → 68.8 % exact answers on 16 rows" in line


def make_sweep(db: Session, strategy: Any, count: int | None = None) -> Sweep:  # noqa: ANN401 -- of a plan
    plan = SweepPlan(
        space=RATES, strategy=strategy, count=count, metric="evaluation_exact_share", parallel=1
    )
    return sweeps.create(db, experiments.create(db, "tone", make_recipe()), plan)


def end_trial(db: Session, settings: Settings, run: Run) -> Evaluation:
    """Let a run of a sweep succeed; return its evaluation."""
    evaluated_runs.lay_out(db, settings, run)
    run.status = RunStatus.SUCCEEDED
    evaluation = automatic.queue_for_run(db, settings, run)
    assert evaluation is not None
    return evaluation


def test_sweep_waits_for_evaluations_and_ranks_by_them(engine: Engine, settings: Settings) -> None:
    """A sweep needs the values, so it has them measured even if people evaluate otherwise."""
    with unit_of_work(engine) as db:
        sweep = make_sweep(db, "grid")
        found: list[Evaluation] = []
        for _ in range(3):
            sweeps.advance(db, sweep.id or 0)
            newest = sweeps.list_runs(db, sweep.id or 0)[-1]
            found.append(end_trial(db, settings, newest))
        sweeps.advance(db, sweep.id or 0)
        before = [trial.state for trial in sweeps.list_trials(db, sweep)], sweep.status
        marker = sweeps.change_marker(db, sweep)
        for evaluation, right in zip(found, (5, 15, 10), strict=True):
            finish(db, evaluation, right)
        changed = sweeps.change_marker(db, sweep) != marker
        sweeps.advance(db, sweep.id or 0)
        trials = sweeps.list_trials(db, sweep)
        best = sweeps.best(sweep, trials)

        assert before == (["going"] * 3, SweepStatus.RUNNING)
        assert changed
        assert [trial.value for trial in trials] == [0.25, 0.75, 0.5]
        assert best is not None
        assert best.number == 1
        assert sweep.direction == "maximise"
        assert sweep.status is SweepStatus.FINISHED


def test_search_that_learns_waits_for_the_value_of_the_last_run(
    engine: Engine, settings: Settings
) -> None:
    with unit_of_work(engine) as db:
        sweep = make_sweep(db, "tpe", count=2)
        sweeps.advance(db, sweep.id or 0, [{"optimisation.learning_rate": 1e-4}])
        evaluation = end_trial(db, settings, sweeps.list_runs(db, sweep.id or 0)[0])
        room_before = sweeps.count_queueable(db, sweep)
        finish(db, evaluation, right=5)

        assert (room_before, sweeps.count_queueable(db, sweep)) == (0, 1)


def test_trial_whose_evaluation_failed_has_no_value(engine: Engine, settings: Settings) -> None:
    with unit_of_work(engine) as db:
        sweep = make_sweep(db, "grid")
        sweeps.advance(db, sweep.id or 0)
        evaluation = end_trial(db, settings, sweeps.list_runs(db, sweep.id or 0)[0])
        evaluated_runs.fail(db, evaluation)
        (trial,) = sweeps.list_trials(db, sweep)

        assert (trial.state, trial.value) == ("done", None)


@pytest.mark.parametrize(
    ("changes", "plan", "param"),
    [
        ({"evaluation": {"after_training": "none"}}, {}, "metric"),
        ({}, {"is_pruning": True, "strategy": "tpe", "count": 2}, "is_pruning"),
    ],
)
def test_sweep_that_could_not_have_values_is_refused(
    engine: Engine, changes: dict[str, Any], plan: dict[str, Any], param: str
) -> None:
    with unit_of_work(engine) as db:
        recipe = runs.with_overrides(make_recipe(), changes)
        with pytest.raises(InvalidError) as refused:
            sweep_preview.preview(
                db, recipe, SweepPlan(space=RATES, metric="evaluation_exact_share", **plan)
            )

    assert refused.value.param == param


def test_other_sweeps_are_not_evaluated(engine: Engine, evaluating: Settings) -> None:
    with unit_of_work(engine) as db:
        sweep = make_sweep(db, "grid")
        sweep.metric = "eval_loss"
        sweeps.advance(db, sweep.id or 0)
        run = sweeps.list_runs(db, sweep.id or 0)[0]
        evaluated_runs.lay_out(db, evaluating, run)
        run.status = RunStatus.SUCCEEDED

        assert automatic.queue_for_run(db, evaluating, run) is None


def test_form_of_a_sweep_offers_the_metrics(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        experiment_id = experiments.create(db, "tone", make_recipe()).id
    page = parse_page(client.get(f"/sweeps/new?from=experiment:{experiment_id}").text)
    offered = {option.attributes.get("value"): option.text for option in page.all("option")}

    assert "Exact match" in offered["evaluation_exact_share"]
    assert "evaluation_answer_tokens" not in offered
