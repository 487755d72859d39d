"""Reports to share: a run or a comparison as one HTML file, to read here or to download."""

from fastapi import APIRouter
from fastapi.responses import Response

from studio.protocols.run_dir import RunDir
from studio.services.runs import runs
from studio.web.http.deps import DB, Config
from studio.web.reports.report_file import respond, run_report_name
from studio.web.reports.run_report import render_run_report

router = APIRouter(include_in_schema=False)


@router.get("/runs/{run_id}/report.html")
def show_run_report(run_id: int, db: DB, config: Config, *, download: bool = False) -> Response:
    run = runs.get(db, run_id)
    folder = RunDir(config.runs / str(run.id))
    html = render_run_report(db, run, folder, is_file=download)
    return respond(html, run_report_name(run), download=download)
