"""Sweeps: planned, gone on with as runs end, and never a trial twice or lost."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from sqlalchemy import Engine, text
from sqlmodel import Session

from studio.db import migrate
from studio.db.session import unit_of_work
from studio.db.states import RunStatus, SweepStatus
from studio.db.tables import Dataset, Run, Sweep
from studio.errors import ConflictError, NotFoundError
from studio.protocols.events import Event, Failed, Finished, Started
from studio.recipe.search_space import Distribution, Range, SearchSpace, Values
from studio.services import experiments
from studio.services.queue import queue
from studio.services.runs import attempts, run_commands, runs, states
from studio.services.sweeps import sweep_preview, sweeps
from studio.services.sweeps.sweep_preview import SweepPlan
from studio.worker.sweep_scheduler import SweepScheduler
from tests.support.factories import make_finished_run, make_recipe, metrics_event

RATE, RANK = "optimisation.learning_rate", "adapter.r"
LOG = Range(low=1e-5, high=1e-2, log=True)


def several(*values: object) -> Values:
    return Values.model_validate({"values": list(values)})


GRID: SearchSpace = {RATE: several("1e-4", "1e-3"), RANK: several("4", "8")}


def begin(db: Session, plan: SweepPlan) -> Sweep:
    return sweeps.create(db, experiments.create(db, "tone", make_recipe()), plan)


def queued(db: Session) -> list[Run]:
    return [run for run in sweeps.list_runs(db, 1) if run.status is RunStatus.QUEUED]


def train(db: Session, run: Run, *losses: float, then: Event | None = None) -> None:
    """Let a run tell its validation losses, and end if it is said how."""
    if run.status is RunStatus.QUEUED:
        states.move(db, run, RunStatus.STARTING)
        attempts.apply_events(db, run, [Started(total_steps=10, resolved={})], 1)
    told = [metrics_event(step, eval_loss=loss) for step, loss in enumerate(losses, run.step + 1)]
    attempts.apply_events(db, run, [*told, *([then] if then else [])], 2)


def finish(db: Session, run: Run, *losses: float) -> None:
    train(db, run, *losses, then=Finished(metrics={"eval_loss": losses[-1]}))


def tried(db: Session) -> list[Mapping[str, object]]:
    return [one.settings for one in sweeps.list_trials(db, sweeps.get(db, 1))]


def carry_out(engine: Engine, sweeper: SweepScheduler) -> None:
    """Tend a sweep to its end. The loss of a run is how far its rate is from a thousandth."""
    for _ in range(100):
        sweeper.tick()
        with unit_of_work(engine) as db:
            if sweeps.get(db, 1).status.is_final:
                return
            for run in queued(db):
                finish(db, run, abs(run.recipe.optimisation.learning_rate - 1e-3) * 1000)
    raise AssertionError("It never ended.")


def test_grid_tries_every_combination_in_order(engine: Engine, tmp_path: Path) -> None:
    with unit_of_work(engine) as db:
        begin(db, SweepPlan(space=GRID))
    carry_out(engine, SweepScheduler(engine, tmp_path))

    with unit_of_work(engine) as db:
        names = [run.name for run in sweeps.list_runs(db, 1)]
        assert tried(db) == [
            {RATE: 1e-4, RANK: 4},
            {RATE: 1e-4, RANK: 8},
            {RATE: 1e-3, RANK: 4},
            {RATE: 1e-3, RANK: 8},
        ]
        assert sweeps.get(db, 1).status is SweepStatus.FINISHED
    assert names[0] == "tone learning_rate=0.0001 r=4 #1"


def test_queued_runs_never_exceed_parallel_limit(engine: Engine, tmp_path: Path) -> None:
    with unit_of_work(engine) as db:
        begin(db, SweepPlan(space=GRID, parallel=2))
    sweeper = SweepScheduler(engine, tmp_path)
    sweeper.tick()
    sweeper.tick()
    with unit_of_work(engine) as db:
        first = queued(db)
        finish(db, first[0], 1.0)
    sweeper.tick()

    with unit_of_work(engine) as db:
        assert (len(first), len(queued(db)), sweeps.get(db, 1).submitted) == (2, 2, 3)


@pytest.mark.parametrize("strategy", ["grid", "random", "tpe"])
def test_many_parallel_runs_are_queued_in_batches(
    engine: Engine, tmp_path: Path, strategy: sweep_preview.Strategy
) -> None:
    with unit_of_work(engine) as db:
        space: SearchSpace = {RANK: Range(low=1, high=20)}
        begin(db, SweepPlan(space=space, strategy=strategy, count=20, parallel=18))
    sweeper = SweepScheduler(engine, tmp_path)
    seen = []
    for _ in range(4):
        sweeper.tick()
        with unit_of_work(engine) as db:
            seen.append(len(queued(db)))

    with unit_of_work(engine) as db:
        assert (seen, len({str(one) for one in tried(db)})) == ([8, 16, 18, 18], 18)


@pytest.mark.parametrize("strategy", ["random", "tpe"])
def test_new_scheduler_continues_with_same_settings(
    engine: Engine, tmp_path: Path, strategy: sweep_preview.Strategy
) -> None:
    with unit_of_work(engine) as db:
        plan = SweepPlan(space={RATE: LOG, RANK: Range(low=4, high=64)}, strategy=strategy, count=6)
        begin(db, plan)
        sweeps.create(db, experiments.get(db, 1), plan)
    for number in range(12):
        # A fresh worker each time, and now and then without what Optuna has noted.
        SweepScheduler(engine, tmp_path / str(number // 4)).tick()
        with unit_of_work(engine) as db:
            for run in [*sweeps.list_runs(db, 1), *sweeps.list_runs(db, 2)]:
                if run.status is RunStatus.QUEUED:
                    finish(db, run, run.recipe.optimisation.learning_rate)

    with unit_of_work(engine) as db:
        first, second = (
            [dict(one.settings) for one in sweeps.list_trials(db, sweeps.get(db, number))]
            for number in (1, 2)
        )
    assert len(first) == 6
    assert first == second


def test_tpe_converges_towards_best_settings(engine: Engine, tmp_path: Path) -> None:
    with unit_of_work(engine) as db:
        begin(db, SweepPlan(space={RATE: LOG, RANK: several(4, 8)}, strategy="tpe", count=24))
    carry_out(engine, SweepScheduler(engine, tmp_path))

    with unit_of_work(engine) as db:
        sweep = sweeps.get(db, 1)
        made = sweeps.list_trials(db, sweep)
    early = [abs(one.value or 0) for one in made[:8]]
    late = [abs(one.value or 0) for one in made[-8:]]
    assert sum(late) < sum(early)
    assert len({tuple(one.settings.values()) for one in made}) == 24
    assert next(iter(sweep.importance)) == RATE
    assert sum(sweep.importance.values()) == pytest.approx(1)


def test_tpe_samples_settings_of_each_adapter_kind(engine: Engine, tmp_path: Path) -> None:
    space: SearchSpace = {"adapter.kind": several("lora", "full"), RANK: several(4, 8), RATE: LOG}
    with unit_of_work(engine) as db:
        begin(db, SweepPlan(space=space, strategy="tpe", count=12))
    carry_out(engine, SweepScheduler(engine, tmp_path))

    with unit_of_work(engine) as db:
        sweep, told = sweeps.get(db, 1), tried(db)
    ranked = {str(one["adapter.kind"]): RANK in one for one in told}
    assert (len(told), ranked) == (12, {"lora": True, "full": False})
    assert sum(sweep.importance.values()) == pytest.approx(1)


def test_unpromising_run_is_stopped_and_marked_pruned(engine: Engine, tmp_path: Path) -> None:
    with unit_of_work(engine) as db:
        plan = SweepPlan(space={RATE: LOG}, strategy="tpe", count=9, is_pruning=True)
        begin(db, plan)
    sweeper = SweepScheduler(engine, tmp_path)
    for _ in range(5):
        sweeper.tick()
        with unit_of_work(engine) as db:
            finish(db, queued(db)[0], 3.0, 2.0, 1.0)
    sweeper.tick()
    with unit_of_work(engine) as db:
        run = queued(db)[0]
        train(db, run, 3.5)
    sweeper.tick()
    with unit_of_work(engine) as db:
        spared = runs.get(db, run.id or 0).status
        train(db, runs.get(db, run.id or 0), 3.4)
    sweeper.tick()

    with unit_of_work(engine) as db:
        pruned = runs.get(db, run.id or 0)
        assert (spared, pruned.status) == (RunStatus.RUNNING, RunStatus.STOPPING)
        assert (pruned.asked, pruned.is_pruned) == ("keep", True)
        attempts.apply_events(db, pruned, [Finished(metrics={"eval_loss": 3.4})], 3)
        made = sweeps.list_trials(db, sweeps.get(db, 1))
        assert (made[-1].state, sweeps.best(sweeps.get(db, 1), made)) == ("pruned", made[0])


def test_failed_run_becomes_trial_without_value(engine: Engine, tmp_path: Path) -> None:
    with unit_of_work(engine) as db:
        begin(db, SweepPlan(space={RATE: LOG}, strategy="tpe", count=2))
    sweeper = SweepScheduler(engine, tmp_path)
    sweeper.tick()
    with unit_of_work(engine) as db:
        train(db, queued(db)[0], 3.0, then=Failed(code="died", message="It died."))
    sweeper.tick()
    with unit_of_work(engine) as db:
        finish(db, queued(db)[0], 2.0)
    sweeper.tick()

    with unit_of_work(engine) as db:
        sweep = sweeps.get(db, 1)
        made = sweeps.list_trials(db, sweep)
        assert [one.state for one in made] == ["failed", "done"]
        assert (sweeps.best(sweep, made), sweep.status) == (made[1], SweepStatus.FINISHED)


@pytest.mark.parametrize("damage", [b"", b"{half", b'{"op_code":99}\n{"op_code":99}\n'])
def test_damaged_journal_is_rebuilt(engine: Engine, tmp_path: Path, damage: bytes) -> None:
    with unit_of_work(engine) as db:
        begin(db, SweepPlan(space={RATE: LOG}, strategy="tpe", count=4))
    SweepScheduler(engine, tmp_path).tick()
    with unit_of_work(engine) as db:
        finish(db, queued(db)[0], 2.0)
    (tmp_path / "1.journal").write_bytes(damage)
    SweepScheduler(engine, tmp_path).tick()

    with unit_of_work(engine) as db:
        assert [one.state for one in sweeps.list_trials(db, sweeps.get(db, 1))] == ["done", "going"]


def test_restarted_run_updates_its_trial(engine: Engine, tmp_path: Path) -> None:
    with unit_of_work(engine) as db:
        begin(db, SweepPlan(space={RATE: LOG}, strategy="tpe", count=2, parallel=2))
    sweeper = SweepScheduler(engine, tmp_path)
    sweeper.tick()
    with unit_of_work(engine) as db:
        train(db, queued(db)[0], then=Failed(code="died", message="It died."))
    sweeper.tick()
    with unit_of_work(engine) as db:
        run_commands.restart(db, 1)
    sweeper.tick()
    carry_out(engine, sweeper)

    with unit_of_work(engine) as db:
        assert [one.state for one in sweeps.list_trials(db, sweeps.get(db, 1))] == ["done", "done"]


def test_deleted_run_is_not_recreated(engine: Engine, tmp_path: Path) -> None:
    with unit_of_work(engine) as db:
        begin(db, SweepPlan(space=GRID))
    SweepScheduler(engine, tmp_path).tick()
    with unit_of_work(engine) as db:
        finish(db, queued(db)[0], 1.0)
        runs.delete(db, 1, tmp_path)
    carry_out(engine, SweepScheduler(engine, tmp_path))

    with unit_of_work(engine) as db:
        assert [run.trial for run in sweeps.list_runs(db, 1)] == [1, 2, 3]


def test_missing_dataset_fails_sweep_with_message(engine: Engine, tmp_path: Path) -> None:
    with unit_of_work(engine) as db:
        begin(db, SweepPlan(space={RATE: LOG}, strategy="tpe", count=3))
        db.delete(db.get_one(Dataset, 1))
    sweeper = SweepScheduler(engine, tmp_path)
    for _ in range(sweeps.MAX_REFUSED):
        sweeper.tick()

    with unit_of_work(engine) as db:
        sweep = sweeps.get(db, 1)
        assert (sweep.status, sweep.submitted) == (SweepStatus.FAILED, 0)
        assert sweep.error.startswith("There is no dataset named starter.")


def test_paused_sweep_starts_no_runs_until_resumed(engine: Engine, tmp_path: Path) -> None:
    with unit_of_work(engine) as db:
        begin(db, SweepPlan(space=GRID, parallel=2))
    sweeper = SweepScheduler(engine, tmp_path)
    sweeper.tick()
    with unit_of_work(engine) as db:
        train(db, queued(db)[0], 3.0)
        sweeps.pause(db, 1)
        held = [run.is_held for run in queued(db)]
        finish(db, runs.get(db, 1), 2.0)
    sweeper.tick()
    with unit_of_work(engine) as db:
        waiting = len(sweeps.list_runs(db, 1))
        sweeps.resume(db, 1)
        claimed = queue.claim(db, "w", 9)
        with pytest.raises(ConflictError):
            sweeps.resume(db, 1)
    sweeper.tick()

    with unit_of_work(engine) as db:
        assert (held, waiting, len(sweeps.list_runs(db, 1))) == ([True], 2, 3)
        assert claimed is not None


def test_stopping_sweep_keeps_results_and_cancels_queued_runs(
    engine: Engine, tmp_path: Path
) -> None:
    with unit_of_work(engine) as db:
        begin(db, SweepPlan(space=GRID, parallel=2))
    sweeper = SweepScheduler(engine, tmp_path)
    sweeper.tick()
    with unit_of_work(engine) as db:
        train(db, queued(db)[0], 3.0)
        sweeps.stop(db, 1)
        with pytest.raises(ConflictError):
            sweeps.stop(db, 1)
    sweeper.tick()

    with unit_of_work(engine) as db:
        made = sweeps.list_runs(db, 1)
        assert [(run.status, run.asked) for run in made] == [
            (RunStatus.STOPPING, "keep"),
            (RunStatus.CANCELLED, None),
        ]


def test_deleting_sweep_keeps_its_runs(db: Session) -> None:
    begin(db, SweepPlan(space=GRID))
    sweeps.advance(db, 1)
    with pytest.raises(ConflictError):
        sweeps.delete(db, 1)
    sweeps.stop(db, 1)
    sweeps.delete(db, 1)
    db.flush()
    db.expire_all()

    assert [run.sweep_id for run in runs.newest(db, runs.RunFilter(), limit=9)] == [None]
    with pytest.raises(NotFoundError):
        sweeps.get(db, 1)


def test_best_trial_is_highest_when_maximising(db: Session) -> None:
    made: dict[str, Distribution] = {RANK: several(4, 8)}
    sweep = begin(
        db, SweepPlan(space=made, metric="tokens_per_second", direction="maximise", parallel=2)
    )
    sweeps.advance(db, 1)
    for run, speed in zip(queued(db), (10.0, 20.0), strict=True):
        train(db, run, then=Finished(metrics={"tokens_per_second": speed}))

    found = sweeps.best(sweep, sweeps.list_trials(db, sweep))
    assert found is not None
    assert (found.number, found.value) == (1, 20.0)


def test_downgrade_keeps_sweep_runs(engine: Engine) -> None:
    with unit_of_work(engine) as db:
        begin(db, SweepPlan(space=GRID))
        sweeps.advance(db, 1)
        make_finished_run(db)
    migrate.downgrade(engine, migrate.known_versions()[migrate.known_versions().index("0016") - 1])
    migrate.upgrade(engine)

    with engine.connect() as connection:
        counted = [
            connection.execute(text(f"SELECT count(*) FROM {table}")).scalar_one()  # noqa: S608 -- fixed names
            for table in ("run", "metric", "sweep")
        ]
    assert counted == [2, 10, 0]
