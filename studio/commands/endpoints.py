"""`studio endpoints`: serve models under names of their own, over the API."""

from typing import TYPE_CHECKING, Annotated

import typer

from studio.commands.output import JsonOption, open_studio, print_json, print_table

if TYPE_CHECKING:
    from studio.client.schemas import Endpoint

app = typer.Typer(
    no_args_is_help=True, help="Endpoints of the studio that STUDIO_URL and STUDIO_TOKEN select."
)

EndpointId = Annotated[int, typer.Argument(help="The ID of the endpoint.", min=1)]
Name = Annotated[str, typer.Argument(help="What programs send as model.")]
RunId = Annotated[int, typer.Argument(help="The ID of the run whose model is served.", min=1)]
Step = Annotated[int | None, typer.Option(help="Serve the checkpoint of this step.", min=0)]
Export = Annotated[int | None, typer.Option(help="Serve this export of the run.", min=1)]
Engine = Annotated[
    str, typer.Option(help="studio, llama.cpp or vllm; by default the first that fits.")
]
Idle = Annotated[
    int, typer.Option(help="Stop after so many minutes without a request; 0 for never.", min=0)
]

COLUMNS = ("id", "name", "engine", "run", "state", "requests", "note")


@app.command()
def create(  # noqa: PLR0913 -- typer reads the options
    name: Name,
    run_id: RunId,
    step: Step = None,
    export: Export = None,
    engine: Engine = "",
    idle: Idle = 30,
    *,
    as_json: JsonOption = False,
) -> None:
    """Serve the model of a run, one of its checkpoints or exports."""
    options = {"step": step, "export_id": export, "engine": engine or None}
    with open_studio() as studio:
        made = studio.endpoints.create(name, run_id, idle_minutes=idle or None, **options)
    _print(made, as_json=as_json)


@app.command("list")
def list_endpoints(*, as_json: JsonOption = False) -> None:
    """List endpoints, newest first."""
    with open_studio() as studio:
        found = studio.endpoints.list().data
    if as_json:
        print_json(found)
    else:
        print_table(COLUMNS, map(_row, found))


@app.command()
def start(endpoint_id: EndpointId, *, as_json: JsonOption = False) -> None:
    """Start an endpoint that is stopped, idle or failing."""
    with open_studio() as studio:
        endpoint = studio.endpoints.start(endpoint_id)
    _print(endpoint, as_json=as_json)


@app.command()
def stop(endpoint_id: EndpointId, *, as_json: JsonOption = False) -> None:
    """Stop an endpoint until it is started again."""
    with open_studio() as studio:
        endpoint = studio.endpoints.stop(endpoint_id)
    _print(endpoint, as_json=as_json)


@app.command()
def delete(endpoint_id: EndpointId) -> None:
    """Delete an endpoint and its log; the model stays."""
    with open_studio() as studio:
        studio.endpoints.delete(endpoint_id)


@app.command()
def log(endpoint_id: EndpointId) -> None:
    """Print the last lines that the program of an endpoint wrote."""
    with open_studio() as studio:
        typer.echo(studio.endpoints.log(endpoint_id))


def _print(endpoint: "Endpoint", *, as_json: bool) -> None:
    if as_json:
        print_json(endpoint)
    else:
        print_table(COLUMNS, [_row(endpoint)])


def _row(endpoint: "Endpoint") -> list[str]:
    counted = (endpoint.state, str(endpoint.requests), endpoint.error or endpoint.note)
    return [
        str(endpoint.id),
        endpoint.name,
        endpoint.engine,
        str(endpoint.run_id),
        *counted,
    ]
