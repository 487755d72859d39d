"""The Evaluation tab of a run: its model and its base model on the same rows, compared."""

from collections.abc import Sequence
from typing import Annotated, Any, get_args

from fastapi import APIRouter, Form, Query, Request
from fastapi.responses import Response
from pydantic import BaseModel, Field
from sqlmodel import Session

from studio.db.evaluations import AnswerSet, Evaluation
from studio.db.tables import Run
from studio.services.chat import suggested_prompts
from studio.services.datasets import datasets, image_addresses
from studio.services.evaluations import evaluation_results, evaluations, judgements
from studio.services.evaluations.evaluation_results import ORDERS, RowOrder, RowPair
from studio.services.evaluations.evaluations import EvaluationRequest
from studio.services.runs import runs
from studio.services.samples import sample_diff
from studio.settings import Settings
from studio.web.http.deps import DB, Config
from studio.web.rendering.render import block, redirect
from studio.web.runs import benchmarks_section, row_feedback
from studio.web.runs.run_frame import tab_page

router = APIRouter(include_in_schema=False)

SHOWN_ROWS = 20
"""Rows of the table that a page shows at first, and how many more each time."""


class EvaluationView(BaseModel):
    """The query parameters of the tab."""

    number: int | None = None
    """The evaluation; the newest one by default."""
    sort: str = "worst"
    shown: Annotated[int, Field(ge=1, le=evaluations.MAX_ROWS)] = SHOWN_ROWS
    left: Annotated[int, Field(ge=0, lt=2**31)] = 0
    """How many rows of the run's dataset have just been left out."""
    version: Annotated[int, Field(ge=0, lt=2**31)] = 0
    """The version without them."""
    before: Annotated[int, Field(ge=0, lt=2**31)] = 0
    """The version that was in use before."""


@router.get("/runs/{run_id}/evaluation")
def show_evaluation(
    request: Request,
    run_id: int,
    db: DB,
    config: Config,
    view: Annotated[EvaluationView, Query()],
) -> Response:
    run = runs.get(db, run_id)
    return tab_page(request, db, run, "evaluation", **_context(db, config, run, view))


@router.get("/runs/{run_id}/parts/evaluation")
def refresh_evaluation(
    request: Request, run_id: int, db: DB, config: Config, number: int | None = None
) -> Response:
    """Return the part of the tab that changes while the models answer."""
    run = runs.get(db, run_id)
    context = _context(db, config, run, EvaluationView(number=number))
    return block(request, "runs/evaluation.html", "results", run=run, **context)


class EvaluationForm(BaseModel):
    """The form of an evaluation as it is posted."""

    again: int | None = None
    """The evaluation to try again; the other fields do not count then."""
    dataset: str = ""
    rows: Annotated[int, Field(ge=1, le=evaluations.MAX_ROWS)] = evaluations.DEFAULT_ROWS
    max_new_tokens: Annotated[int, Field(ge=1, le=evaluations.MAX_NEW_TOKENS)] = (
        evaluations.DEFAULT_NEW_TOKENS
    )


@router.post("/runs/{run_id}/evaluations")
def evaluate(
    request: Request, run_id: int, db: DB, config: Config, posted: Annotated[EvaluationForm, Form()]
) -> Response:
    if posted.again is not None:
        evaluation = evaluations.retry(db, run_id, posted.again)
    else:
        asked = EvaluationRequest(**posted.model_dump(exclude={"again"}))
        evaluation = evaluations.create(db, config, run_id, asked)
    return redirect(request, f"/runs/{run_id}/evaluation?number={evaluation.id}")


@router.post("/runs/{run_id}/evaluations/{evaluation_id}/delete")
def delete(request: Request, run_id: int, evaluation_id: int, db: DB) -> Response:
    evaluations.delete(db, run_id, evaluation_id)
    return redirect(request, f"/runs/{run_id}/evaluation")


def _context(db: Session, settings: Settings, run: Run, view: EvaluationView) -> dict[str, Any]:
    message, hint = evaluations.refusal(run)
    made = evaluations.list_for_run(db, run.id or 0)
    chosen = (
        evaluations.get(db, run.id or 0, view.number) if view.number else next(iter(made), None)
    )
    return {
        "refusal": message,
        "refusal_hint": hint,
        "evaluations": made,
        "chosen": chosen,
        "defaults": EvaluationRequest(),
        "limits": evaluations,
        "datasets": datasets.list_with_rows(db, evaluations.readable_kinds(run)),
        "view": view,
        **benchmarks_section.context(db, run),
        **(_chosen_context(db, chosen, view) if chosen else {}),
        **(row_feedback.row_context(db, settings, run, chosen) if chosen else {}),
        **(_judged_context(db, settings, chosen) if chosen else {}),
    }


def _chosen_context(db: Session, evaluation: Evaluation, view: EvaluationView) -> dict[str, Any]:
    results = evaluation_results.load(db, evaluation)
    progress = evaluations.find_progress(db, evaluation)
    sets = [db.get_one(AnswerSet, one) for one in (evaluation.base_id, evaluation.tuned_id)]
    order: RowOrder = next((one for one in get_args(RowOrder) if one == view.sort), "worst")
    rows = results.sort_rows(order) if results else []
    more = len(rows) - view.shown
    return {
        "results": results,
        "rule": sets[0].model if sets[0].is_rule else "",
        "sides": list(zip(sets, progress, strict=True)),
        "is_going": any(not one.status.is_final for one in progress),
        "sort": order,
        "orders": _orders(rows),
        "rows": [(row, _diff(row)) for row in rows[: view.shown]],
        "more": min(more, SHOWN_ROWS) if more > 0 else 0,
        "images": image_addresses.of_rows(db, sets[1].made_by["rows"].get("sha256", "")),
        "max_prompt": suggested_prompts.MAX_LINKED_CHARS,
    }


def _orders(rows: Sequence[RowPair]) -> dict[RowOrder, str]:
    """Return the orders that sort these rows: without losses, no reference is less expected."""
    has_losses = any(row.tuned.nll is not None for row in rows)
    return {name: title for name, title in ORDERS.items() if name != "surprise" or has_losses}


def _judged_context(db: Session, settings: Settings, evaluation: Evaluation) -> dict[str, Any]:
    results = evaluation_results.load(db, evaluation)
    if results is None or results.kind != "text":
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
