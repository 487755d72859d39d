"""The page of a step whose loss or gradients became NaN or infinite."""

from fastapi import APIRouter, Request
from fastapi.responses import Response

from studio.protocols.run_dir import RunDir
from studio.services.runs import nonfinite_steps, runs
from studio.web.http.deps import DB, Config
from studio.web.rendering.render import page

router = APIRouter(prefix="/runs", include_in_schema=False)


@router.get("/{run_id}/broken")
def show(request: Request, run_id: int, db: DB, config: Config, step: int = 0) -> Response:
    run = runs.get(db, run_id)
    log = RunDir(config.runs / str(run_id)).log
    step_report = nonfinite_steps.inspect_step(db, run_id, step, log)
    return page(request, "runs/nonfinite_step.html", run=run, found=step_report)
