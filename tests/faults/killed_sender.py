"""Send a run in children that are killed: `python killed_sender.py HOME TRACKER KILLS`.

The tracker's package is imported once. Each child kills itself at a random call of a function; when
one has finished before that, the next ones send to another home, until enough were killed. Prints
the homes.
"""

import os
import random
import signal
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from studio.protocols.tasks import TaskDir
from studio.runner.tasks.track import track
from tests.support.tracked_runs import resumed_run, run_folder, tracking_job, write_log

STEPS = 1200
"""Enough for several batches."""
NEVER = sys.maxsize


def main(home: Path, tracker: str, kills: int) -> None:
    draw, killed = random.Random(tracker), 0  # noqa: S311 -- draws places
    import_module(f"studio.trackers.{tracker}")
    if tracker == "trackio":
        os.environ["TRACKIO_DIR"] = str(home)
        import_module("numpy")
    calls = count_calls(home / "counted", tracker)
    for number in range(kills):
        if killed >= kills:
            break
        here = prepare(home / f"{number}")
        while killed < kills and send(here, tracker, draw.randrange(1, calls // 3)):
            killed += 1
        if send(here, tracker, NEVER):
            sys.exit("The last process did not finish.")
        sys.stdout.write(f"{here}\n")


def prepare(home: Path) -> Path:
    write_log(run_folder(home), *resumed_run(STEPS))
    return home


def count_calls(home: Path, tracker: str) -> int:
    """Return how many functions are called until all is sent."""
    prepare(home)
    read_end, write_end = os.pipe()

    def tell(count: int) -> None:
        os.write(write_end, str(count).encode())

    if send(home, tracker, NEVER, tell):
        sys.exit("Not even one process has finished.")
    return int(os.read(read_end, 100))


def send(
    home: Path, tracker: str, limit: int, at_end: Callable[[int], None] = lambda _count: None
) -> bool:
    """Send in a child that kills itself at a call. Return whether it did not finish before."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1] != 0
    os.environ["STUDIO_HOME"] = str(home)
    count = 0

    def count_call(_frame: object, kind: str, _argument: object) -> None:
        nonlocal count
        count += kind in {"call", "c_call"}
        if count >= limit:
            os.kill(os.getpid(), signal.SIGKILL)

    job = tracking_job(run_folder(home), tracker)  # type: ignore[arg-type] # one that there is
    sys.setprofile(count_call)
    result = track(TaskDir(home), job.model_dump(mode="json"), lambda _phase, _share: None)
    sys.setprofile(None)
    at_end(count)
    sys.stderr.write(result["trackers"][tracker]["error"])
    sys.stderr.flush()
    os._exit(0 if result["trackers"][tracker]["is_closed"] else 1)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
