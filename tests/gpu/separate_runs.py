"""Runs in processes of their own, as a worker starts them: what a run leaves on the GPU is gone."""

from collections.abc import Iterable
from pathlib import Path

from studio.protocols.events import Finished
from studio.protocols.run_dir import RunDir
from studio.worker.processes import process
from tests.support.waiting import wait_until
from tests.training import tiny
from tests.training.tiny import Row


def train(
    root: Path, model: Path, rows: Iterable[Row] | None = None, /, **changes: object
) -> RunDir:
    """Train a run to its end; `changes` are knobs, `__` for the dot."""
    run = tiny.write_run(root, model, rows, **changes)
    started = process.start(run, gpu=0)
    wait_until(lambda: not started.is_alive)
    assert isinstance(tiny.last_event(run), Finished), run.log.read_text("utf-8")[-2000:]
    return run
