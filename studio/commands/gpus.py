"""`studio gpus`: list the GPUs of the machine that trains, and release those in quarantine."""

import json
from typing import Annotated

import typer

from studio.commands.output import JsonOption, print_table

app = typer.Typer(no_args_is_help=True, help="GPUs: list them, release those in quarantine.")

GpuName = Annotated[str, typer.Argument(help="The UUID of the GPU, as `studio gpus list` says.")]

COLUMNS = ("index", "name", "memory", "uuid", "state")


@app.command("list")
def list_gpus(*, as_json: JsonOption = False) -> None:
    """List the GPUs that runs get, and those that are left out, with the reason."""
    from studio.commands.local_home import open_home  # noqa: PLC0415 -- heavy import
    from studio.db.session import read_session  # noqa: PLC0415 -- heavy import
    from studio.services.hardware import gpu_health  # noqa: PLC0415 -- heavy import
    from studio.services.workers import workers  # noqa: PLC0415 -- heavy import

    with open_home() as (_settings, engine), read_session(engine) as db:
        machine = workers.whole_hardware(db)
        quarantined = gpu_health.list_quarantined(db)
    rows = [
        {
            "index": gpu.index,
            "name": gpu.name,
            "memory": f"{gpu.memory_bytes / 1e9:.0f} GB",
            "uuid": gpu.uuid,
            "state": machine.gpu_faults.get(gpu.index) or quarantined.get(gpu.cuda_name) or "works",
        }
        for gpu in machine.gpus
    ]
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
    elif rows:
        print_table(COLUMNS, [[str(cell) for cell in row.values()] for row in rows])
    else:
        typer.echo("No GPU was found: runs train on the CPU.")


@app.command()
def release(gpu: GpuName) -> None:
    """Let runs have a GPU again on which runs had failed."""
    from studio.commands.local_home import open_home  # noqa: PLC0415 -- heavy import
    from studio.db.session import unit_of_work  # noqa: PLC0415 -- heavy import
    from studio.services.hardware import gpu_health  # noqa: PLC0415 -- heavy import

    with open_home() as (_settings, engine), unit_of_work(engine) as db:
        gpu_health.release(db, gpu)
    typer.echo(f"Runs may have {gpu} again.")
