"""Runs without training: a worker whose launcher has recorded events written at their pace.

`python -m tests.bench.pretend worker SLOTS` is a whole worker with such a launcher. It tells
`python -m tests.bench.pretend feeder RECORDED`, through a file in the home, which runs it has
started; the feeder writes their events, and looks how far behind the database is.
"""

import json
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlalchemy import Engine
from sqlmodel import col, select

from studio.db.session import read_session
from studio.db.tables import Run
from studio.protocols.run_dir import RunDir
from studio.services.operations import home
from studio.services.tasks.exit_diagnosis import ProcessExit
from studio.settings import Settings
from studio.worker.loop import WorkerLoop
from studio.worker.processes.launcher import LaunchSpec, LocalLauncher

STARTED, STOP = "started", "stop"
"""Files in the home: the runs that were started, one a line; and the end of the bench."""

EVENT_SECONDS = 1.0
"""Between two events of a run."""

SAMPLED_EVERY = 20
"""Of how many runs one is watched."""


class PretendLauncher(LocalLauncher):
    """Starts no processes. Attempts last until the bench ends."""

    def __init__(self, folder: Path, slots: int) -> None:
        super().__init__(wanted_slots=slots)
        self._started = (folder / STARTED).open("a", buffering=1)

    def submit(self, spec: LaunchSpec) -> str:
        self._started.write(f"{spec.folder.root}\n")
        return f"0@{spec.run_id}@{self.boot}"

    def poll(self, handle: str) -> ProcessExit | None:
        del handle
        return None

    def pid(self, handle: str) -> int:
        del handle
        return 0


def work(slots: int) -> None:
    """Work as a worker does until the bench ends."""
    settings, stop = Settings(), threading.Event()
    engine = home.open_home(settings)
    loop = WorkerLoop(engine, settings, PretendLauncher(settings.home, slots))
    threading.Thread(target=_stop_with, args=(settings.home, stop), daemon=True).start()
    loop.run(stop)


def _stop_with(folder: Path, stop: threading.Event) -> None:
    while not (folder / STOP).exists():
        time.sleep(0.2)
    stop.set()


@dataclass(slots=True)
class Replay:
    """The events of one run, written one by one."""

    folder: RunDir
    due_at: float
    written: int = 0
    sizes: list[tuple[float, int]] = field(default_factory=list)
    """When each event was written, and the size of the file with it."""

    def write(self, recorded: Sequence[dict[str, Any]]) -> None:
        """Write the next event as if it happened now; after the last, the last one again."""
        event = recorded[min(self.written, len(recorded) - 1)]
        self.written += 1
        told = event | {"seq": self.written, "at": datetime.now(UTC).isoformat()}
        if told["kind"] == "progressed":
            told["step"] = self.written
        with self.folder.events.path.open("ab", buffering=0) as file:
            file.write(json.dumps(told).encode() + b"\n")
            self.sizes.append((time.time(), file.tell()))
        self.due_at += EVENT_SECONDS


def feed(recorded: Sequence[dict[str, Any]]) -> None:
    """Write events until the bench ends, and print how old the oldest unread ones were."""
    settings = Settings()
    engine = home.open_home(settings)
    replays: dict[int, Replay] = {}
    lags: list[float] = []
    threading.Thread(target=_watch, args=(engine, replays, lags), daemon=True).start()
    started = _follow(settings.home / STARTED)
    while not (settings.home / STOP).exists():
        for root in next(started):
            # Not all at the same time.
            first_at = time.time() + EVENT_SECONDS * (len(replays) % 97) / 97
            replays[int(Path(root).name)] = Replay(RunDir(Path(root)), first_at)
        now = time.time()
        for replay in list(replays.values()):
            if replay.due_at <= now:
                replay.write(recorded)
        time.sleep(0.05)
    json.dump({"lags": lags}, sys.stdout)


def _follow(path: Path) -> Iterator[list[str]]:
    """Yield the new lines of a file each time."""
    path.touch()
    with path.open() as file:
        while True:
            yield [line.strip() for line in file]


def _watch(engine: Engine, replays: dict[int, Replay], lags: list[float]) -> None:
    while True:
        time.sleep(1)
        watched = [number for number in list(replays) if number % SAMPLED_EVERY == 0]
        query = select(Run.id, Run.events_offset).where(col(Run.id).in_(watched))
        with read_session(engine) as db:
            read = dict(db.exec(query).all())
        now = time.time()
        for number in watched:
            sizes = replays[number].sizes
            unread = next((at for at, size in list(sizes) if size > read[number]), now)
            lags.append(max(0.0, now - unread))


if __name__ == "__main__":
    if sys.argv[1] == "worker":
        work(int(sys.argv[2]))
    else:
        feed([json.loads(line) for line in Path(sys.argv[2]).read_text("utf-8").splitlines()])
