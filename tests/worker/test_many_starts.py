"""Many runs that start at once: the worker follows the others meanwhile."""

from dataclasses import dataclass

from sqlalchemy import Engine

from studio.db.session import read_session, unit_of_work
from studio.services.runs import runs
from studio.services.tasks import tasks
from studio.services.tasks.exit_diagnosis import ProcessExit
from studio.services.workers import workers
from studio.settings import Settings
from studio.worker.loop import MAX_STARTS, WorkerLoop
from studio.worker.processes.launcher import LaunchSpec, LocalLauncher
from tests.support.factories import make_run

RUNS = MAX_STARTS + 5


@dataclass(slots=True)
class NothingLauncher(LocalLauncher):
    """Starts no process; its attempts never end."""

    def submit(self, spec: LaunchSpec) -> str:
        return f"0@{spec.run_id}@{self.boot}"

    def poll(self, handle: str) -> ProcessExit | None:
        del handle
        return None


def live(engine: Engine) -> list[int]:
    with read_session(engine) as db:
        return [run.id or 0 for run in runs.list_live(db)]


def test_worker_starts_some_runs_a_tick_in_order_and_before_tasks(
    engine: Engine, settings: Settings
) -> None:
    with unit_of_work(engine) as db:
        ids = [make_run(db).id or 0 for _ in range(RUNS)]
        tasks.enqueue(db, workers.SPEED_TASK_KIND, "this machine", {})
    loop = WorkerLoop(engine, settings, NothingLauncher(wanted_slots=RUNS))

    loop.tick()
    assert live(engine) == ids[:MAX_STARTS]
    assert loop.scheduler.slots == 0
    loop.tick()
    assert live(engine) == ids
    assert loop.scheduler.slots == 0
