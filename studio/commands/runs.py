"""`studio runs`: submit, list, follow and compare runs over the API."""

import json
import sys
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from studio.commands.output import (
    JsonOption,
    format_number,
    open_studio,
    print_json,
    print_runs,
    print_table,
)

if TYPE_CHECKING:
    from studio.client import Run, Studio
    from studio.client.schemas import Tracker

app = typer.Typer(
    no_args_is_help=True, help="Runs of the studio that STUDIO_URL and STUDIO_TOKEN select."
)

INTERRUPTED = 130
"""The shell's exit code for Ctrl-C."""

RunId = Annotated[int, typer.Argument(help="The ID of the run.", min=1)]
RunIds = Annotated[list[int], typer.Argument(help="The IDs of the runs.", min=1)]
Recipe = Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="A recipe as YAML.")]
Changes = Annotated[
    list[str],
    typer.Option("--set", help="Change a value: --set precision=fp32", metavar="KEY=VALUE"),
]
Name = Annotated[str, typer.Option(help="Name of the run; by default the file's name.")]
Follow = Annotated[bool, typer.Option(help="Wait until the run ends, and print its metrics.")]
Query = Annotated[str, typer.Argument(help="A query as in the search box: 'status:failed'.")]
Sort = Annotated[str, typer.Option(help="The field to sort by; a leading minus reverses it.")]
Limit = Annotated[int, typer.Option(help="The maximum number of runs.", min=1)]
Base = Annotated[int | None, typer.Option(help="The run to compare the others against.")]
Output = Annotated[
    Path | None,
    typer.Option(dir_okay=False, help="The file to write; by default named after the runs."),
]
Keys = Annotated[
    str,
    typer.Option(help="The metrics, separated by commas: loss,grad_norm. Empty for the main ones."),
]
To = Annotated[
    str | None,
    typer.Option(help="csv, tensorboard, mlflow, wandb or trackio.", metavar="TRACKER"),
]
Project = Annotated[
    str, typer.Option(help="The project there; by default the name of the run's experiment.")
]
Again = Annotated[bool, typer.Option("--again", help="Try again after a failure.")]
Numbers = Annotated[
    str,
    typer.Option(
        help="The number format: bfloat16, one of llama.cpp's, such as q8_0 or q4_k_m, or int8, "
        "nf4 or fp4."
    ),
]
Kind = Annotated[
    str | None,
    typer.Option(
        help="full, merged, adapter, gguf, bitsandbytes or torchao; by default the model as it was "
        "trained."
    ),
]
Start = Annotated[bool, typer.Option(help="Restart from step 0 instead of resuming.")]


@app.command()
def submit(
    recipe: Recipe,
    changes: Changes = [],  # noqa: B006 -- typer reads it; it is never changed
    name: Name = "",
    *,
    follow: Follow = False,
    as_json: JsonOption = False,
) -> None:
    """Queue a recipe."""
    from studio.commands import recipes  # noqa: PLC0415 -- heavy import

    values = recipes.load_recipe(recipe, changes).model_dump(mode="json", exclude_unset=True)
    with open_studio() as studio:
        run = studio.runs.submit(name or recipe.stem, values)
        if follow:
            sys.exit(_follow(studio, run.id, as_json=as_json))
    _print_run(run, f"Run {run.id} is queued: {run.name}.", as_json=as_json)


@app.command("list")
def list_runs(
    query: Query = "", sort: Sort = "-created", limit: Limit = 20, *, as_json: JsonOption = False
) -> None:
    """List runs, newest first."""
    with open_studio() as studio:
        matches = list(islice(studio.runs.list(query, sort=sort), limit))
    if as_json:
        print_json(matches)
    elif matches:
        print_runs(matches)
    else:
        typer.echo("No matching runs.", err=True)


@app.command()
def show(run_id: RunId, *, as_json: JsonOption = False) -> None:
    """Show the details of a run."""
    with open_studio() as studio:
        run = studio.runs.get(run_id)
    if as_json:
        print_json(run)
        return
    print_runs([run])
    _print_error(run)


@app.command()
def follow(run_id: RunId, *, as_json: JsonOption = False) -> None:
    """Print a run's metrics until it ends. Ctrl-C leaves it running."""
    with open_studio() as studio:
        sys.exit(_follow(studio, run_id, as_json=as_json))


@app.command()
def cancel(run_id: RunId, *, as_json: JsonOption = False) -> None:
    """Cancel a run; progress since its last checkpoint is lost."""
    with open_studio() as studio:
        _print_run(studio.runs.cancel(run_id), "Cancelled.", as_json=as_json)


@app.command()
def pause(run_id: RunId, *, as_json: JsonOption = False) -> None:
    """Pause a run: it saves a checkpoint and frees its slot."""
    with open_studio() as studio:
        _print_run(studio.runs.pause(run_id), "Pausing.", as_json=as_json)


@app.command()
def resume(run_id: RunId, *, as_json: JsonOption = False) -> None:
    """Resume a paused run: it returns to the queue."""
    with open_studio() as studio:
        _print_run(studio.runs.resume(run_id), "Queued to resume.", as_json=as_json)


@app.command()
def retry(run_id: RunId, *, from_start: Start = False, as_json: JsonOption = False) -> None:
    """Retry a run that failed or was cancelled, from its newest checkpoint."""
    with open_studio() as studio:
        run = studio.runs.retry(run_id, from_start=from_start)
    _print_run(run, "Queued again.", as_json=as_json)


@app.command()
def metrics(run_id: RunId, keys: Keys = "", *, as_json: JsonOption = False) -> None:
    """Print a run's metrics by step."""
    from studio.methods import MAIN_METRICS  # noqa: PLC0415 -- heavy import

    requested_keys = [key for key in keys.split(",") if key] or list(MAIN_METRICS)
    with open_studio() as studio:
        curves = studio.runs.metrics(run_id, requested_keys)
    if as_json:
        print_json(curves)
        return
    available_keys = [key for key in requested_keys if key in curves.series]
    columns = [curves.series[key].mean for key in available_keys]
    rows = zip(curves.x, *columns, strict=True)
    print_table(
        ["step", *available_keys],
        [[f"{step:g}", *map(format_number, values)] for step, *values in rows],
    )


@app.command()
def track(
    run_id: RunId,
    to: To = None,
    project: Project = "",
    *,
    retries: Again = False,
    as_json: JsonOption = False,
) -> None:
    """Send a run to a tracker; without --to, show where it is sent and how far."""
    with open_studio() as studio:
        if to is not None and retries:
            sent = [studio.runs.retry_tracker(run_id, to)]
        elif to is not None:
            sent = [studio.runs.track(run_id, to, project=project)]
        else:
            sent = studio.runs.trackers(run_id).data
    if as_json:
        print_json(sent)
    elif sent:
        rows = [[one.key, one.progress, _last_step(one), _describe_place(one)] for one in sent]
        print_table(["tracker", "state", "last step", "see it"], rows)
    else:
        typer.echo(f"Run {run_id} is not sent anywhere. Send it: --to tensorboard", err=True)


def _last_step(tracker: "Tracker") -> str:
    return "" if tracker.step is None else str(tracker.step)


def _describe_place(tracker: "Tracker") -> str:
    if tracker.error:
        return f"{tracker.error} {tracker.hint}".strip()
    return tracker.command or tracker.place


@app.command()
def compare(run_ids: RunIds, base: Base = None, *, as_json: JsonOption = False) -> None:
    """Compare the settings and metrics of runs."""
    with open_studio() as studio:
        comparison = studio.compare(run_ids, base=base)
    if as_json:
        print_json(comparison)
        return
    settings = [[key, *map(str, values)] for key, values in comparison.differing.items()]
    metric_rows = [
        [
            key,
            *(f"{format_number(cell.value)} {_format_delta(cell.delta)}".strip() for cell in cells),
        ]
        for key, cells in comparison.metrics.items()
    ]
    heads = [f"run {run_id}{' (base)' * (run_id == comparison.base)}" for run_id in comparison.runs]
    print_table(["", *heads], settings + metric_rows)


@app.command()
def report(run_ids: RunIds, base: Base = None, output: Output = None) -> None:
    """Save the report of a run, or of a comparison of several, as one HTML file."""
    is_comparison = len(run_ids) > 1 or base is not None
    with open_studio() as studio:
        html = (
            studio.comparison_report(run_ids, base=base)
            if is_comparison
            else studio.runs.report(run_ids[0])
        )
    name = "comparison" if is_comparison else "run"
    path = output or Path(f"{name}-{'-'.join(map(str, run_ids[:6]))}-report.html")
    path.write_text(html, encoding="utf-8")
    typer.echo(f"Saved {path}.")


@app.command()
def export(
    run_id: RunId, dtype: Numbers = "bfloat16", kind: Kind = None, *, as_json: JsonOption = False
) -> None:
    """Queue an export of a run's model; the run's page has its files."""
    with open_studio() as studio:
        created = studio.runs.export(run_id, dtype, kind=kind)
    if as_json:
        typer.echo(created.model_dump_json(indent=2))
        return
    typer.echo(f"Export {created.id} is queued: {created.kind} in {created.dtype}.")


@app.command()
def push(
    run_id: RunId,
    export_id: Annotated[int, typer.Argument(help="The export to upload.")],
    repo: Annotated[str, typer.Argument(help="Where to: owner/name.", metavar="OWNER/NAME")],
    *,
    public: Annotated[
        bool, typer.Option("--public", help="Let everyone see a repository that is created.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Upload a finished export to the Hugging Face hub, private by default.

    Asked again, it shows how far the upload is, or tries a failed one again.
    """
    with open_studio() as studio:
        made = studio.runs.push_export(run_id, export_id, repo, private=not public)
    if as_json:
        print_json(made)
    elif made.url:
        typer.echo(f"Uploaded: {made.url}")
    else:
        typer.echo(f"The upload to {made.repo} is {made.status}. {made.phase}".strip())


def _print_run(run: "Run", sentence: str, *, as_json: bool) -> None:
    if as_json:
        print_json(run)
    else:
        typer.echo(sentence)


def _follow(studio: "Studio", run_id: int, *, as_json: bool) -> int:
    """Print a run's metrics until it ends. Return 0 if it succeeded."""
    try:
        for event in studio.runs.stream(run_id):
            if event.event == "metrics" and not as_json:
                _print_metrics(json.loads(event.data))
    except KeyboardInterrupt:
        typer.echo(
            f"\nRun {run_id} keeps running. To stop it: studio runs cancel {run_id}", err=True
        )
        return INTERRUPTED
    run = studio.runs.get(run_id)
    if as_json:
        print_json(run)
    else:
        typer.secho(f"Run {run_id} {run.status}.", fg="green" if run.error is None else "red")
        _print_error(run)
    return 0 if run.status == "succeeded" else 1


def _print_metrics(rows: list[dict[str, Any]]) -> None:
    from studio.methods import MAIN_METRICS  # noqa: PLC0415 -- heavy import

    for row in rows:
        losses = {key: row["values"][key] for key in MAIN_METRICS if key in row["values"]}
        if losses:
            numbers = "  ".join(f"{key} {float(value):.4}" for key, value in losses.items())
            typer.echo(f"step {row['step']}  {numbers}")


def _print_error(run: "Run") -> None:
    if run.error is not None:
        typer.secho(run.error.message, fg="red", err=True)
        typer.echo(run.error.hint, err=True)


def _format_delta(value: float | None) -> str:
    return "" if not value else f"({value:+.3g})"
