"""One run, told in events: whatever happens, the last of them says how it ended."""

import errno
import shutil
import traceback
from collections.abc import Callable
from pathlib import Path

from studio.events import NO_ROOM_EXIT, Event, Finished, Stopped
from studio.rundir import RunDir
from studio.training.stopping import Stop, StopRequested


def execute(root: Path, stop: Stop) -> int:
    """Train the run in a folder. Return the exit code: 0 unless it failed.

    Without room for its last event, the exit code says so in its place.
    """
    try:
        return _execute(RunDir(root), stop)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        return NO_ROOM_EXIT


def _execute(run: RunDir, stop: Stop) -> int:
    log = run.events

    def say(event: Event) -> None:
        with stop.held():
            log.append(event)

    try:
        with stop.at_once():
            from studio.runner import stages  # noqa: PLC0415 -- heavy import
        metrics = stages.train(run, say, stop)
    except StopRequested:
        print("stopped, as asked", flush=True)  # noqa: T201 -- the run's own log
        log.append(Stopped(step=stop.step))
    except Exception as error:  # noqa: BLE001 -- the last stand: the studio must hear of anything
        return _fail(error, say)
    else:
        log.append(Finished(metrics=metrics))
    finally:
        shutil.rmtree(run.checkpoints, ignore_errors=True)
    return 0


def _fail(error: Exception, say: Callable[[Event], None]) -> int:
    from studio.training import failures  # noqa: PLC0415 -- heavy import

    traceback.print_exception(error)
    say(failures.explain(error))
    return 1
