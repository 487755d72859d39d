"""What people do with a row of an evaluation: keep its expected answer, or leave it out."""

from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Form, Request
from fastapi.responses import Response
from pydantic import BaseModel, Field
from sqlmodel import Session

from studio.db.evaluations import Evaluation
from studio.db.tables import Run
from studio.services.evaluations import evaluations
from studio.services.feedback import evaluation_feedback
from studio.services.feedback.evaluation_feedback import Choice
from studio.services.runs import runs
from studio.settings import Settings
from studio.web.http.deps import DB, Config, ReadDB
from studio.web.http.multipart_upload import read_limits
from studio.web.rendering.render import block, redirect, referring_page, wants_fragment

router = APIRouter(prefix="/runs/{run_id}/evaluations/{evaluation_id}", include_in_schema=False)


class ChosenRow(BaseModel):
    """A row of the evaluation, as it is posted."""

    position: Annotated[int, Field(ge=0, le=evaluations.MAX_ROWS)]


class RowChoice(ChosenRow):
    """What to do with the expected answer of a row."""

    choice: Choice
    undo: bool = False


def row_context(
    db: Session, settings: Settings, run: Run, evaluation: Evaluation
) -> dict[str, Any]:
    """Return what the buttons of the rows of an evaluation depend on."""
    return {
        "said": evaluation_feedback.said_about(db, evaluation),
        "trained_on": evaluation_feedback.find_training_data(db, settings.datasets, run),
    }


@router.post("/feedback")
def say(
    request: Request,
    run_id: int,
    evaluation_id: int,
    db: DB,
    config: Config,
    chosen: Annotated[RowChoice, Form()],
) -> Response:
    """Keep the expected answer of a row, or take that back."""
    run, evaluation = runs.get(db, run_id), evaluations.get(db, run_id, evaluation_id)
    position = chosen.position
    if chosen.undo:
        evaluation_feedback.remove(db, evaluation, position, chosen.choice)
    else:
        evaluation_feedback.add_expected(db, config.datasets, evaluation, position, chosen.choice)
    if not wants_fragment(request):
        there = referring_page(request, f"/runs/{run_id}/evaluation?number={evaluation_id}")
        return redirect(request, f"{there}#row-{position}")
    return block(
        request,
        "runs/row_feedback.html",
        "actions",
        run=run,
        evaluation=evaluation,
        row=evaluation_feedback.find_pair(db, evaluation, position),
        said=evaluation_feedback.said_about(db, evaluation),
    )


@router.post("/leave-out")
def leave_out(
    request: Request,
    run_id: int,
    evaluation_id: int,
    db: ReadDB,
    config: Config,
    chosen: Annotated[ChosenRow, Form()],
) -> Response:
    """Make a version of the run's dataset without the rows that ask what a row asks."""
    run, evaluation = runs.get(db, run_id), evaluations.get(db, run_id, evaluation_id)
    left = evaluation_feedback.leave_out(
        request.app.state.engine,
        config.datasets,
        run,
        evaluation,
        chosen.position,
        read_limits(config),
    )
    if left.version is None:
        return redirect(request, f"/datasets/{left.dataset_id}")
    told = {"left": left.rows, "before": left.before, "version": left.version}
    query = urlencode({"number": evaluation_id, **told})
    return redirect(request, f"/runs/{run_id}/evaluation?{query}#left-out")
