"""The Files tab of a run: what it wrote, and the exports of its model."""

from fastapi import APIRouter, Request
from fastapi.responses import Response

from studio.protocols.run_dir import RunDir
from studio.services.runs import artifacts, rollouts, runs
from studio.web.http.deps import DB, Config
from studio.web.models import export_page
from studio.web.runs import trackers_section
from studio.web.runs.run_frame import tab_page

router = APIRouter(include_in_schema=False)


@router.get("/runs/{run_id}/files")
def show_files(request: Request, run_id: int, db: DB, config: Config) -> Response:
    run = runs.get(db, run_id)
    folder = RunDir(config.runs / str(run.id))
    return tab_page(
        request,
        db,
        run,
        "files",
        files=artifacts.list_files(folder.artifacts),
        answer_bytes=rollouts.count_bytes(folder),
        exports=export_page.list_exports(db, run, config),
        choices=export_page.format_choices(db, run, config),
        **trackers_section.context(db, run, config),
    )
