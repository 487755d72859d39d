"""How a piece of work ends, whatever becomes of it."""

import signal
from pathlib import Path

import pytest

from studio.protocols.events import Event, EventLog, Finished, Stopped
from studio.runner import execution
from studio.training.stop_handler import StopHandler


@pytest.fixture
def stop() -> StopHandler:
    return StopHandler()


def last(log: EventLog) -> Event:
    return log.read()[0][-1]


def test_interrupted_import_counts_as_stopped(stop: StopHandler, tmp_path: Path) -> None:
    """A package that is told to stop while it loads may swallow that, and break later."""
    log = EventLog(tmp_path / "events.jsonl")

    def load(_say: execution.EmitEvent) -> Event:
        with stop.stopping_allowed():
            try:
                stop._handle_signal(signal.SIGTERM, None)
            except BaseException as half:
                raise RecursionError from half
        return Finished(metrics={})

    code = execution._log_work(log, stop, load)

    assert (code, type(last(log))) == (0, Stopped)
