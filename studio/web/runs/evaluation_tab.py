"""The Evaluation tab of a run: its model and its base model on the same rows, compared."""

from typing import Annotated, Any, get_args

from fastapi import APIRouter, Form, Query, Request
from fastapi.responses import Response
from pydantic import BaseModel, Field
from sqlmodel import Session

from studio.db.evaluations import AnswerSet, Evaluation
from studio.db.tables import Run
from studio.services.chat import suggested_prompts
from studio.services.datasets import datasets
from studio.services.evaluations import evaluation_results, evaluations, judgements
from studio.services.evaluations.evaluation_results import ORDERS, RowOrder, RowPair
from studio.services.evaluations.evaluations import EvaluationRequest
from studio.services.runs import runs
from studio.services.samples import sample_diff
from studio.settings import Settings
from studio.web.http.deps import DB, Config
from studio.web.rendering.render import block, redirect
from studio.web.runs.run_frame import tab_page

router = APIRouter(include_in_schema=False)

SHOWN_ROWS = 20
"""Rows of the table that a page shows at first, and how many more each time."""

Shown = Annotated[int, Query(ge=1, le=evaluations.MAX_ROWS)]


@router.get("/runs/{run_id}/evaluation")
def show_evaluation(  # noqa: PLR0913, PLR0917 -- what FastAPI passes
    request: Request,
    run_id: int,
    db: DB,
    config: Config,
    number: int | None = None,
    sort: str = "worst",
    shown: Shown = SHOWN_ROWS,
) -> Response:
    run = runs.get(db, run_id)
    return tab_page(
        request, db, run, "evaluation", **_context(db, config, run, number, sort, shown)
    )


@router.get("/runs/{run_id}/parts/evaluation")
def refresh_evaluation(
    request: Request, run_id: int, db: DB, config: Config, number: int | None = None
) -> Response:
    """Return the part of the tab that changes while the models answer."""
    run = runs.get(db, run_id)
    context = _context(db, config, run, number, "worst", SHOWN_ROWS)
    return block(request, "runs/evaluation.html", "results", run=run, **context)


class EvaluationForm(BaseModel):
    """The form of an evaluation as it is posted."""

    dataset: str = ""
    rows: Annotated[int, Field(ge=1, le=evaluations.MAX_ROWS)] = evaluations.DEFAULT_ROWS
    max_new_tokens: Annotated[int, Field(ge=1, le=evaluations.MAX_NEW_TOKENS)] = (
        evaluations.DEFAULT_NEW_TOKENS
    )


@router.post("/runs/{run_id}/evaluations")
def evaluate(
    request: Request, run_id: int, db: DB, config: Config, posted: Annotated[EvaluationForm, Form()]
) -> Response:
    asked = EvaluationRequest(**posted.model_dump())
    evaluation = evaluations.create(db, config, run_id, asked)
    return redirect(request, f"/runs/{run_id}/evaluation?number={evaluation.id}")


@router.post("/runs/{run_id}/evaluations/{evaluation_id}/delete")
def delete(request: Request, run_id: int, evaluation_id: int, db: DB) -> Response:
    evaluations.delete(db, run_id, evaluation_id)
    return redirect(request, f"/runs/{run_id}/evaluation")


def _context(
    db: Session, settings: Settings, run: Run, number: int | None, sort: str, shown: int
) -> dict[str, Any]:
    message, hint = evaluations.refusal(run)
    made = evaluations.list_for_run(db, run.id or 0)
    chosen = evaluations.get(db, run.id or 0, number) if number else next(iter(made), None)
    order: RowOrder = next((one for one in get_args(RowOrder) if one == sort), "worst")
    return {
        "refusal": message,
        "refusal_hint": hint,
        "evaluations": made,
        "chosen": chosen,
        "defaults": EvaluationRequest(),
        "limits": evaluations,
        "datasets": datasets.list_with_rows(db, evaluations.READABLE),
        "orders": ORDERS,
        "sort": order,
        **(_chosen_context(db, chosen, order, shown) if chosen else {}),
        **(_judged_context(db, settings, chosen) if chosen else {}),
    }


def _chosen_context(
    db: Session, evaluation: Evaluation, order: RowOrder, shown: int
) -> dict[str, Any]:
    results = evaluation_results.load(db, evaluation)
    progress = evaluations.find_progress(db, evaluation)
    sets = [db.get_one(AnswerSet, one) for one in (evaluation.base_id, evaluation.tuned_id)]
    rows = results.sort_rows(order) if results else []
    return {
        "results": results,
        "sides": list(zip(sets, progress, strict=True)),
        "is_going": any(not one.status.is_final for one in progress),
        "rows": [(row, _diff(row)) for row in rows[:shown]],
        "more": min(len(rows) - shown, SHOWN_ROWS) if len(rows) > shown else 0,
        "shown": shown,
        "max_prompt": suggested_prompts.MAX_LINKED_CHARS,
    }


def _judged_context(db: Session, settings: Settings, evaluation: Evaluation) -> dict[str, Any]:
    results = evaluation_results.load(db, evaluation)
    if results is None:
        return {}
    return {
        "judged": judgements.list_for_evaluation(db, evaluation),
        "judges": judgements.list_judges(db, settings),
        "budget": judgements.estimate(results, judgements.MAX_PAIRS),
        "judge_limits": judgements,
    }


def _diff(row: RowPair) -> list[sample_diff.DiffPiece]:
    """Return the run's answer compared with the reference; unmarked if too little is shared."""
    answer = row.tuned.answer
    pieces = sample_diff.diff_words(answer, row.reference) if row.reference else []
    if not pieces or sample_diff.is_rewritten(pieces):
        return [sample_diff.DiffPiece("same", answer)]
    return pieces
