"""What the buttons of a run's page do: commands, repeating, trash and deletion."""

from collections.abc import Callable

from fastapi import APIRouter, Request
from fastapi.responses import Response
from sqlmodel import Session

from studio.db.tables import Run
from studio.services.runs import bulk_actions, run_commands, runs
from studio.web.http.deps import DB, Config, PostedForm
from studio.web.rendering.render import redirect

router = APIRouter(include_in_schema=False)


@router.post("/runs/{run_id}/again")
def run_again(request: Request, run_id: int, db: DB, posted: PostedForm) -> Response:
    """Submit the same recipe again, with the posted values in place of its own."""
    return redirect(request, f"/runs/{runs.resubmit(db, run_id, posted).id}")


@router.post("/runs/{run_id}/trash")
def move_to_trash(request: Request, run_id: int, db: DB) -> Response:
    bulk_actions.move_to_trash(db, [runs.get(db, run_id).id or 0])
    return redirect(request, f"/runs/{run_id}")


@router.post("/runs/{run_id}/restore")
def restore(request: Request, run_id: int, db: DB) -> Response:
    bulk_actions.restore(db, [run_id])
    return redirect(request, f"/runs/{run_id}")


@router.post("/runs/{run_id}/delete")
def delete(request: Request, run_id: int, db: DB, config: Config) -> Response:
    runs.delete(db, run_id, config.runs)
    return redirect(request, "/")


def _command_handler(command: Callable[[Session, int], Run]) -> Callable[..., Response]:
    def asked(request: Request, run_id: int, db: DB) -> Response:
        command(db, run_id)
        return redirect(request, f"/runs/{run_id}")

    return asked


for verb, ask in {
    "cancel": run_commands.cancel,
    "keep": run_commands.stop_and_keep,
    "pause": run_commands.pause,
    "resume": run_commands.resume,
    "retry": run_commands.retry,
    "restart": run_commands.restart,
}.items():
    router.add_api_route(f"/runs/{{run_id}}/{verb}", _command_handler(ask), methods=["POST"])
