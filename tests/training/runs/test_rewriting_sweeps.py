"""A sweep over encoder-decoder models, with real runs, from its settings to its best one."""

from pathlib import Path

import pytest
from sqlalchemy import Engine

from studio.db.session import unit_of_work
from studio.db.states import RunStatus, SweepStatus
from studio.recipe.search_space import Values
from studio.services import experiments
from studio.services.runs import attempts, states
from studio.services.sweeps import sweeps
from studio.services.sweeps.sweep_preview import SweepPlan
from studio.worker.sweep_scheduler import SweepScheduler
from tests.support.factories import make_recipe
from tests.training import tiny
from tests.training.runs.test_sequence_to_sequence import LEARNS, models, train

__all__ = ["models"]

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::FutureWarning")]

RATE = "optimisation.learning_rate"
RATES = (1e-6, 0.01)


def test_sweep_over_learning_rates_ends_with_its_objective(
    models: dict[str, Path], engine: Engine, tmp_path: Path
) -> None:
    recipe = make_recipe(method="seq2seq", base_model=str(models["t5"]))
    plan = SweepPlan(space={RATE: Values.model_validate({"values": list(RATES)})})
    scheduler = SweepScheduler(engine, tmp_path / "journals")
    with unit_of_work(engine) as db:
        sweeps.create(db, experiments.create(db, "dates", recipe), plan)
    scores: list[float] = []
    for number, rate in enumerate(RATES, 1):
        scheduler.tick()
        changes = LEARNS | {"optimisation__learning_rate": rate}
        trained = train(tmp_path / f"{number}", models["t5"], changes)
        scores.append(tiny.metric_values(trained, "eval_loss")[-1])
        with unit_of_work(engine) as db:
            (run,) = [run for run in sweeps.list_runs(db, 1) if run.status is RunStatus.QUEUED]
            assert run.recipe.optimisation.learning_rate == rate
            states.move(db, run, RunStatus.STARTING)
            attempts.apply_events(db, run, trained.events.read()[0], 1)
    scheduler.tick()

    with unit_of_work(engine) as db:
        sweep = sweeps.get(db, 1)
        best = sweeps.best(sweep, sweeps.list_trials(db, sweep))
        assert sweep.status is SweepStatus.FINISHED
        assert best is not None
        assert best.settings == {RATE: 0.01}
        assert best.value == pytest.approx(min(scores))
