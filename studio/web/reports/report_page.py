"""Reports to share: a run or a comparison as one HTML file, to read here or to download."""

from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import Response

from studio.protocols.run_dir import RunDir
from studio.services.compare import comparisons
from studio.services.runs import runs
from studio.web.compare.comparison_url import ComparisonQuery
from studio.web.http.deps import DB, Config
from studio.web.reports.comparison_report import render_comparison_report
from studio.web.reports.report_file import comparison_report_name, respond, run_report_name
from studio.web.reports.run_report import render_run_report

router = APIRouter(include_in_schema=False)


@router.get("/runs/{run_id}/report.html")
def show_run_report(run_id: int, db: DB, config: Config, *, download: bool = False) -> Response:
    run = runs.get(db, run_id)
    folder = RunDir(config.runs / str(run.id))
    html = render_run_report(db, run, folder, is_file=download)
    return respond(html, run_report_name(run), download=download)


class ReportQuery(ComparisonQuery):
    """A comparison, and whether to save its report as a file."""

    download: bool = False


@router.get("/compare/report.html")
def show_comparison_report(db: DB, view: Annotated[ReportQuery, Query()]) -> Response:
    saved = comparisons.get(db, view.saved) if view.saved else None
    wanted = view.model_copy(update={"runs": runs.existing_ids(db, view.runs), "download": False})
    title, text = (saved.name, saved.text) if saved else ("", "")
    html = render_comparison_report(db, wanted, title, text, is_file=view.download)
    return respond(html, comparison_report_name(wanted.runs, title), download=view.download)
