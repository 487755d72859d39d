"""One of many workers on one queue: `python tests/faults/competing_worker.py HOME NAME`.

It claims runs, keeps each for a moment, and says that it succeeded; what others leave behind it
puts back. It may be killed anywhere, and its leases are short, so that others notice soon.
"""

import random
import sys
import threading
from datetime import timedelta
from pathlib import Path

from sqlalchemy import Engine

from studio.db.session import open_database, unit_of_work
from studio.protocols.events import Event, Finished, Started
from studio.services.queue import queue
from studio.services.runs import attempts
from studio.services.runs.attempts import AttemptOwner, LeaseLostError
from studio.services.tasks.exit_diagnosis import ProcessExit
from studio.settings import Settings

LEASE = timedelta(seconds=1)
SLOTS = 2
WORK_SECONDS = 0.02


def main(home: Path, name: str) -> None:
    engine, pause = open_database(Settings(home=home)), threading.Event()
    dice = random.Random(name)  # noqa: S311 -- no secret
    while True:
        tidy(engine, name)
        mine = [owner for owner in (claim(engine, name) for _slot in range(SLOTS)) if owner]
        pause.wait(WORK_SECONDS * dice.random())
        for run_id, owner in mine:
            finish(engine, run_id, owner)


def tidy(engine: Engine, name: str) -> None:
    with unit_of_work(engine) as db:
        for run in attempts.list_abandoned(db, name, alone=False):
            attempts.take_over(db, run, name, LEASE)
            attempts.requeue(db, run)


def claim(engine: Engine, name: str) -> tuple[int, AttemptOwner] | None:
    with unit_of_work(engine) as db:
        run = queue.claim(db, name, SLOTS, LEASE)
        return (run.id or 0, AttemptOwner(name, run.attempt)) if run else None


def finish(engine: Engine, run_id: int, owner: AttemptOwner) -> None:
    told: list[Event] = [Started(total_steps=1, resolved={}), Finished(metrics={})]
    try:
        with unit_of_work(engine) as db:
            run = attempts.require_owned(db, run_id, owner)
            attempts.apply_events(db, run, told, 1)
            attempts.close_exited(db, run, ProcessExit(exit_code=0))
    except LeaseLostError:
        return
    sys.stdout.write(f"{run_id}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
