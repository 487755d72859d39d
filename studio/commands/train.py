"""`studio train recipe.yaml`: queue a run and follow it on the terminal."""

import threading
from collections.abc import Sequence
from pathlib import Path

import typer
from sqlalchemy import Engine

from studio import logs
from studio.commands import recipes
from studio.db.session import read_session, unit_of_work
from studio.db.states import RunStatus
from studio.db.tables import Run
from studio.errors import ConflictError
from studio.methods import MAIN_METRICS
from studio.services import experiments
from studio.services.accounts import secrets
from studio.services.metrics import metrics
from studio.services.operations import home
from studio.services.runs import runs
from studio.services.storage import locks
from studio.settings import Settings
from studio.worker.loop import WorkerLoop

POLL_SECONDS = 0.2


def train(settings: Settings, file: Path, changes: Sequence[str], name: str) -> int:
    """Train a recipe until the run ends. Return 0 if it succeeded.

    Raises:
        InvalidError: the file is not a valid recipe, or a change names an unknown field.

    """
    recipe = recipes.load_recipe(file, changes)
    engine = home.open_home(settings)
    home.install_starter(engine, settings)
    with unit_of_work(engine) as db:
        run = runs.submit(db, experiments.create(db, name, recipe))
    typer.echo(f"Run {run.id} is queued.")
    if run.precision_reason:
        typer.echo(f"The studio chose the precision. {run.precision_reason}")
    stop = threading.Event()
    worker = threading.Thread(target=_run_worker, args=(engine, settings, stop))
    worker.start()
    try:
        ended = _follow(engine, run.id or 0)
    finally:
        stop.set()
        worker.join()
    return _print_result(ended, settings)


def _run_worker(engine: Engine, settings: Settings, stop: threading.Event) -> None:
    """Run the queue in this process, unless a worker already does."""
    try:
        with locks.single_process(settings.home, "worker", "studio train"):
            logs.configure("worker")
            secrets.register_for_redaction(engine, settings)
            WorkerLoop.local(engine, settings).run(stop)
    except ConflictError:
        typer.echo("A worker is already running and will train it.")


def _follow(engine: Engine, run_id: int) -> Run:
    """Print new metrics until the run ends."""
    last, pause = 0, threading.Event()
    while True:
        with read_session(engine) as db:
            run = runs.get(db, run_id)
            rows = metrics.load_rows_after(db, run_id, last)
        for row in rows:
            last = row.last_id
            losses = {key: row.values[key] for key in MAIN_METRICS if key in row.values}
            if losses:
                numbers = "  ".join(f"{key} {value:.4}" for key, value in losses.items())
                typer.echo(f"step {row.step}/{run.total_steps}  {numbers}")
        if run.status.is_final and not rows:
            return run
        pause.wait(POLL_SECONDS)


def _print_result(run: Run, settings: Settings) -> int:
    if run.status is RunStatus.SUCCEEDED:
        typer.echo(f"Done: {settings.runs / str(run.id) / 'artifacts'}")
        return 0
    typer.secho(f"Run {run.id} {run.status.value}. {run.error_message}", fg="red", err=True)
    typer.echo(run.error_hint, err=True)
    return 1
