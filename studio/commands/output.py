"""Output of commands: tables for users, plain JSON for scripts."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from studio.client import Studio
    from studio.client.schemas import Run, Schema

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]

STATUS_COLOURS = {"succeeded": "green", "failed": "red", "running": "cyan", "paused": "yellow"}


def open_studio() -> "Studio":
    """Return a client of the studio that STUDIO_URL and STUDIO_TOKEN select."""
    from studio.client import Studio  # noqa: PLC0415 -- heavy import

    return Studio()


def print_json(value: "Schema | Iterable[Schema]") -> None:
    """Print one model as an object, several as a list."""
    from pydantic_core import to_json  # noqa: PLC0415 -- heavy import

    payload: Any = value if hasattr(value, "model_dump") else list(value)
    typer.echo(to_json(payload, indent=2, inf_nan_mode="strings").decode())


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    from rich.console import Console  # noqa: PLC0415 -- heavy import
    from rich.table import Table  # noqa: PLC0415 -- heavy import
    from rich.text import Text  # noqa: PLC0415 -- heavy import

    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in columns:
        table.add_column(column, no_wrap=column == "id")
    for row in rows:
        table.add_row(*(Text(cell, style=STATUS_COLOURS.get(cell, "")) for cell in row))
    Console().print(table)


def print_runs(runs: Sequence["Run"]) -> None:
    """Print runs with the losses and objectives that at least one of them has."""
    from studio.methods import DEFAULT_OBJECTIVE, MAIN_METRICS  # noqa: PLC0415 -- heavy import

    reported = [key for key in MAIN_METRICS if any(key in run.metrics for run in runs)]
    keys = reported or ["loss", DEFAULT_OBJECTIVE]
    rows = (
        [
            str(run.id),
            run.name,
            run.status,
            "" if run.progress is None else f"{run.progress:.0%}",
            *(format_number(run.metrics.get(key)) for key in keys),
            f"{run.created_at:%Y-%m-%d %H:%M}",
        ]
        for run in runs
    )
    print_table(("id", "name", "status", "progress", *keys, "created"), rows)


def format_number(value: float | None) -> str:
    return "" if value is None else f"{value:.5g}"
