"""One piece of work, told in events: whatever happens, the last of them says how it ended."""

import errno
import shutil
import traceback
from collections.abc import Callable
from pathlib import Path

from studio.events import NO_ROOM_EXIT, Event, EventLog, Finished, Stopped
from studio.recipe.exports import ExportSpec
from studio.rundir import ExportDir, RunDir
from studio.runner.hold import held
from studio.training.stopping import Stop, StopRequested

Say = Callable[[Event], None]
Work = Callable[[Say], dict[str, float]]
"""Does what is to be done, and returns what came of it, in numbers."""


def execute(root: Path, stop: Stop) -> int:
    """Train the run in a folder. Return the exit code: 0 unless it failed.

    Without room for its last event, the exit code says so in its place.
    """
    run = RunDir(root)

    def train(say: Say) -> dict[str, float]:
        with stop.at_once():
            from studio.runner import stages  # noqa: PLC0415 -- heavy import
        return stages.train(run, say, stop)

    with held(run):
        try:
            return _tell(run.events, stop, train)
        finally:
            shutil.rmtree(run.checkpoints, ignore_errors=True)


def export(root: Path, stop: Stop) -> int:
    """Make the export in a folder. Return the exit code: 1 if it failed, else 0."""
    folder = ExportDir(root)

    def make(say: Say) -> dict[str, float]:
        with stop.at_once():
            from studio.runner import stages  # noqa: PLC0415 -- heavy import
            from studio.training import export  # noqa: PLC0415 -- heavy import

            spec = ExportSpec.model_validate_json(folder.job.read_text(encoding="utf-8"))
            return export.make(folder, spec, stages.recipe_of(RunDir(spec.run)), say)

    return _tell(folder.events, stop, make)


def _tell(log: EventLog, stop: Stop, work: Work) -> int:
    try:
        return _told(log, stop, work)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        return NO_ROOM_EXIT


def _told(log: EventLog, stop: Stop, work: Work) -> int:
    def say(event: Event) -> None:
        with stop.held():
            log.append(event)

    try:
        metrics = work(say)
    except StopRequested:
        print("stopped, as asked", flush=True)  # noqa: T201 -- the run's own log
        log.append(Stopped(step=stop.step))
    except Exception as error:  # noqa: BLE001 -- the last stand: the studio must hear of anything
        return _fail(error, say)
    else:
        log.append(Finished(metrics=metrics))
    return 0


def _fail(error: Exception, say: Say) -> int:
    from studio.training import failures  # noqa: PLC0415 -- heavy import

    traceback.print_exception(error)
    say(failures.explain(error))
    return 1
