"""The `studio` command: serve · link · accounts · worker · train · runs · datasets · endpoints ….

Each command imports what it needs, so that help and API commands start quickly.
"""

import gc
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

import studio
from studio.commands import accounts, datasets, endpoints, gpus, recipe_files, runs
from studio.errors import StudioError, UnavailableError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Fine-tune language models in the browser, in the precision you choose.",
)

EXIT_UNAVAILABLE = 3
"""The exit code if something the command needs is unavailable; other errors exit with 1."""

app.add_typer(accounts.app, name="accounts")
app.add_typer(runs.app, name="runs")
app.add_typer(datasets.app, name="datasets")
app.add_typer(endpoints.app, name="endpoints")
app.add_typer(gpus.app, name="gpus")
app.add_typer(recipe_files.app, name="recipes")

Port = Annotated[int, typer.Option(help="The port to listen on.", min=1, max=65535)]
Host = Annotated[
    str, typer.Option(help="The address to listen on; by default, only this machine can connect.")
]
OpenPage = Annotated[bool, typer.Option("--open", help="Open the page in a browser.")]
NoSignIn = Annotated[
    bool, typer.Option("--no-sign-in", help="Let all users and programs on this machine in.")
]
OwnWorker = Annotated[bool, typer.Option("--worker/--no-worker", help="Also start a worker.")]
RecipeFile = Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="A recipe as YAML.")]
Changes = Annotated[
    list[str],
    typer.Option("--set", help="Change a value: --set precision=fp32", metavar="KEY=VALUE"),
]
BackupFile = Annotated[Path, typer.Argument(help="A .zip file or a folder to create.")]
Models = Annotated[bool, typer.Option(help="Include the base models, which may be large.")]
Checkpoints = Annotated[bool, typer.Option(help="Include the checkpoints of runs.")]
Backup = Annotated[Path, typer.Argument(help="A backup made by `studio backup`.")]
Into = Annotated[Path | None, typer.Option(help="The folder to fill; by default STUDIO_HOME.")]
Force = Annotated[
    bool, typer.Option(help="Restore into a home that is not empty; its content is set aside.")
]
RunName = Annotated[str, typer.Option(help="Name of the run; by default the file's name.")]


@app.command()
def serve(
    port: Port = 8000,
    host: Host = "127.0.0.1",
    *,
    open_page: OpenPage = False,
    worker: OwnWorker = True,
    no_sign_in: NoSignIn = False,
) -> None:
    """Serve the pages and the API, and start a worker that runs the queue."""
    gc.disable()  # imported modules are never freed; `settle` enables it again
    from studio.commands import login_link  # noqa: PLC0415 -- heavy import
    from studio.commands import serve as serving  # noqa: PLC0415 -- heavy import
    from studio.settings import Settings  # noqa: PLC0415 -- heavy import

    settings = Settings(sign_in="none") if no_sign_in else Settings()
    serving.serve(settings, login_link.Address(host, port), open_page=open_page, worker=worker)


@app.command()
def link() -> None:
    """Print a new sign-in link for the studio on this machine. It works once."""
    from studio.commands import login_link  # noqa: PLC0415 -- heavy import
    from studio.settings import Settings  # noqa: PLC0415 -- heavy import

    login_link.print_login_link(Settings())


@app.command()
def worker(
    lifeline: Annotated[int | None, typer.Option(hidden=True, help="An open socket.")] = None,
    of: Annotated[
        str,
        typer.Option(
            "--studio",
            metavar="URL",
            help="Work for a studio on another machine; STUDIO_TOKEN is your token there.",
        ),
    ] = "",
) -> None:
    """Run the queue until stopped; runs that are training continue without it."""
    gc.disable()  # as above
    from studio.commands import worker  # noqa: PLC0415 -- heavy import

    gc.enable()
    if of:
        worker.run_remote_worker(of)
    else:
        worker.run_worker(lifeline)


@app.command()
def train(recipe: RecipeFile, changes: Changes = [], name: RunName = "") -> None:  # noqa: B006 -- typer reads it; it is never changed
    """Queue a recipe, follow the run until it ends, and print the result."""
    from studio.commands import train as training  # noqa: PLC0415 -- heavy import
    from studio.settings import Settings  # noqa: PLC0415 -- heavy import

    sys.exit(training.train(Settings(), recipe, changes, name or recipe.stem))


@app.command()
def backup(to: BackupFile, *, models: Models = True, checkpoints: Checkpoints = True) -> None:
    """Back up everything to a file or folder, even while the studio runs."""
    from studio.commands import backup as keeping  # noqa: PLC0415 -- heavy import
    from studio.services.operations.backups import BackupOptions  # noqa: PLC0415 -- heavy import
    from studio.settings import Settings  # noqa: PLC0415 -- heavy import

    packed = to.suffix.lower() == ".zip"
    choice = BackupOptions(models=models, checkpoints=checkpoints, packed=packed)
    keeping.back_up(Settings(), to, choice)


@app.command()
def restore(source: Backup, into: Into = None, *, force: Force = False) -> None:
    """Restore a backup here or on another machine, after verifying all of it."""
    from studio.commands import backup as keeping  # noqa: PLC0415 -- heavy import
    from studio.settings import Settings  # noqa: PLC0415 -- heavy import

    settings = Settings(home=into) if into else Settings()
    keeping.restore(settings, source, force=force)


@app.command("doctor")
def check_machine() -> None:
    """Check what this machine supports and what is missing."""
    from studio.commands import doctor  # noqa: PLC0415 -- heavy import
    from studio.settings import Settings  # noqa: PLC0415 -- heavy import

    sys.exit(doctor.print_findings(Settings()))


@app.command("docs", hidden=True)
def write_docs() -> None:
    """Write docs/knobs.md and docs/openapi.json from the code."""
    from studio.commands import docs  # noqa: PLC0415 -- heavy import

    docs.write_all(Path("docs"))


@app.callback(invoke_without_command=True)
def root_options(
    *, version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False
) -> None:
    if version:
        typer.echo(studio.__version__)
        raise typer.Exit


def main() -> None:
    """Run the command; print an expected error as a sentence and a hint, without a traceback."""
    try:
        app(standalone_mode=True)
    except StudioError as error:
        _fail(error)


def _fail(error: StudioError) -> NoReturn:
    typer.secho(error.message, fg="red", err=True)
    if error.hint:
        typer.echo(error.hint, err=True)
    sys.exit(EXIT_UNAVAILABLE if isinstance(error, UnavailableError) else 1)
