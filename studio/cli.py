"""The `studio` command: serve · worker · train · backup · restore · doctor."""

import signal
import sys
import threading
from pathlib import Path
from typing import Annotated, NoReturn

import typer

import studio
from studio import logs
from studio.commands import backup as keeping
from studio.commands import docs, doctor
from studio.commands import serve as serving
from studio.commands import train as training
from studio.errors import StudioError
from studio.services import home, locks
from studio.services.backups import Choice
from studio.settings import Settings
from studio.worker.loop import Loop

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Fine-tune language models in the browser, in the precision you choose.",
)

Port = Annotated[int, typer.Option(help="Where to listen.", min=1, max=65535)]
Host = Annotated[
    str, typer.Option(help="Which address to listen on; only this machine by default.")
]
OpenPage = Annotated[bool, typer.Option("--open", help="Open the page in a browser.")]
OwnWorker = Annotated[bool, typer.Option("--worker/--no-worker", help="Train here, too.")]
RecipeFile = Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="A recipe as YAML.")]
Changes = Annotated[
    list[str],
    typer.Option("--set", help="Change a value: --set precision=fp32", metavar="KEY=VALUE"),
]
BackupFile = Annotated[Path, typer.Argument(help="A file that ends in .zip, or a folder to make.")]
Models = Annotated[bool, typer.Option(help="Take the base models along, which may be large.")]
Checkpoints = Annotated[bool, typer.Option(help="Take the runs' checkpoints along.")]
Backup = Annotated[Path, typer.Argument(help="What `studio backup` made.")]
Into = Annotated[Path | None, typer.Option(help="The folder to fill; by default STUDIO_HOME.")]
Force = Annotated[bool, typer.Option(help="Fill a home in use before; what it held is set aside.")]
RunName = Annotated[str, typer.Option(help="What to call it; by default the file's name.")]


@app.command()
def serve(
    port: Port = 8000,
    host: Host = "127.0.0.1",
    *,
    open_page: OpenPage = False,
    worker: OwnWorker = True,
) -> None:
    """Serve the pages and the API, and run the queue beside them."""
    serving.serve(Settings(), serving.Address(host, port), open_page=open_page, worker=worker)


@app.command()
def worker() -> None:
    """Run the queue, until told to stop; training goes on without it."""
    logs.configure("worker")
    settings = Settings()
    engine = home.open_home(settings)
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    with locks.only_one(settings.home, "worker", "the queue"):
        Loop.local(engine, settings).run(stop)


@app.command()
def train(recipe: RecipeFile, changes: Changes = [], name: RunName = "") -> None:  # noqa: B006 -- typer reads it, nobody changes it
    """Queue a recipe, follow it to its end, and say what came of it."""
    sys.exit(training.train(Settings(), recipe, changes, name or recipe.stem))


@app.command()
def backup(to: BackupFile, *, models: Models = True, checkpoints: Checkpoints = True) -> None:
    """Copy everything the studio keeps to one file or folder; it may go on meanwhile."""
    packed = to.suffix.lower() == ".zip"
    choice = Choice(models=models, checkpoints=checkpoints, packed=packed)
    keeping.back_up(Settings(), to, choice)


@app.command()
def restore(source: Backup, into: Into = None, *, force: Force = False) -> None:
    """Bring a backup back, here or on another machine; checked whole before anything changes."""
    settings = Settings(home=into) if into else Settings()
    keeping.restore(settings, source, force=force)


@app.command("doctor")
def examine() -> None:
    """Say what this machine can do and what is missing."""
    sys.exit(doctor.examine(Settings()))


@app.command("docs", hidden=True)
def write_docs() -> None:
    """Write docs/knobs.md and docs/openapi.json from the code."""
    docs.write(Path("docs"))


@app.callback(invoke_without_command=True)
def about(
    *, version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False
) -> None:
    if version:
        typer.echo(studio.__version__)
        raise typer.Exit


def main() -> None:
    """Run the command; an expected failure is one sentence and its hint, never a traceback."""
    try:
        app(standalone_mode=True)
    except StudioError as error:
        _fail(error)


def _fail(error: StudioError) -> NoReturn:
    typer.secho(error.message, fg="red", err=True)
    if error.hint:
        typer.echo(error.hint, err=True)
    sys.exit(1)
