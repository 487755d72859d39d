"""`studio datasets`: add and list datasets over the API."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Self

import typer

from studio.commands.output import JsonOption, open_studio, print_json, print_table

if TYPE_CHECKING:
    from studio.client.schemas import Dataset

app = typer.Typer(
    no_args_is_help=True, help="Datasets of the studio that STUDIO_URL and STUDIO_TOKEN select."
)

DataFile = Annotated[
    Path, typer.Argument(exists=True, dir_okay=False, help="JSON, CSV, Parquet, Arrow or text.")
]
Name = Annotated[str, typer.Option(help="Name of the dataset; by default the file's name.")]

COLUMNS = ("id", "name", "kind", "status", "rows", "validation")


@app.command()
def add(file: DataFile, name: Name = "", *, as_json: JsonOption = False) -> None:
    """Upload a file."""
    with open_studio() as studio, _UploadProgress(file, quiet=as_json) as bar:
        dataset = studio.datasets.add(file, name=name, progress=bar.update)
    if as_json:
        print_json(dataset)
    else:
        print_table(COLUMNS, [_dataset_row(dataset)])


@app.command("list")
def list_datasets(*, as_json: JsonOption = False) -> None:
    """List datasets, newest first."""
    with open_studio() as studio:
        datasets = list(studio.datasets.list())
    if as_json:
        print_json(datasets)
    else:
        print_table(COLUMNS, map(_dataset_row, datasets))


class _UploadProgress:
    """A progress bar for an upload; silent if stderr is not a terminal."""

    def __init__(self, file: Path, *, quiet: bool) -> None:
        from rich.console import Console  # noqa: PLC0415 -- heavy import
        from rich.progress import DownloadColumn, Progress  # noqa: PLC0415 -- heavy import

        console = Console(stderr=True)
        quiet = quiet or not console.is_terminal
        self._progress = Progress(
            *Progress.get_default_columns(), DownloadColumn(), console=console, disable=quiet
        )
        self._task = self._progress.add_task(file.name, total=file.stat().st_size)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def update(self, sent: int, size: int) -> None:
        self._progress.update(self._task, completed=sent, total=size)


def _dataset_row(dataset: "Dataset") -> list[str]:
    rows = (str(dataset.train_rows), str(dataset.validation_rows))
    return [str(dataset.id), dataset.name, dataset.kind or "", dataset.status, *rows]
