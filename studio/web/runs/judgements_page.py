"""Judgements of an evaluation: by a judge, and by people who see the answers blind."""

from typing import Annotated, Literal

from fastapi import APIRouter, Form, Request
from fastapi.responses import Response
from pydantic import BaseModel, Field

from studio.evaluation import judging
from studio.services.evaluations import evaluations, judgements
from studio.services.runs import runs
from studio.web.http.deps import DB, Config
from studio.web.rendering.render import block, page, redirect

router = APIRouter(include_in_schema=False)

_PREFIX = "/runs/{run_id}/evaluations/{evaluation_id}"


class JudgementForm(BaseModel):
    """The form of a judgement as it is posted."""

    judge: Annotated[str, Field(max_length=1200)]
    pairs: Annotated[int, Field(ge=1, le=judgements.MAX_PAIRS)] = judgements.DEFAULT_PAIRS


class VoteForm(BaseModel):
    """Which answer a person calls better, by its place on the page."""

    position: Annotated[int, Field(ge=0, lt=2**31)]
    choice: Literal["A", "B", "tie"]


@router.post(_PREFIX + "/judgements")
def judge(
    request: Request,
    run_id: int,
    evaluation_id: int,
    db: DB,
    config: Config,
    posted: Annotated[JudgementForm, Form()],
) -> Response:
    evaluation = evaluations.get(db, run_id, evaluation_id)
    judgements.create(db, config, evaluation, posted.judge, posted.pairs)
    return redirect(request, _address(run_id, evaluation_id))


@router.post(_PREFIX + "/judgements/{judgement_id}/delete")
def delete(
    request: Request, run_id: int, evaluation_id: int, judgement_id: int, db: DB
) -> Response:
    judgements.delete(db, evaluations.get(db, run_id, evaluation_id), judgement_id)
    return redirect(request, _address(run_id, evaluation_id))


@router.get("/runs/{run_id}/parts/judgements")
def judgements_block(request: Request, run_id: int, number: int, db: DB) -> Response:
    """Return the part of the tab that changes while a judge works."""
    run, evaluation = runs.get(db, run_id), evaluations.get(db, run_id, number)
    judged = judgements.list_for_evaluation(db, evaluation)
    return block(
        request, "runs/evaluation.html", "judged", run=run, chosen=evaluation, judged=judged
    )


@router.get(_PREFIX + "/vote")
def show_pair(request: Request, run_id: int, evaluation_id: int, db: DB) -> Response:
    """Show the next pair of answers that the caller has not judged, in an order by chance."""
    run, evaluation = runs.get(db, run_id), evaluations.get(db, run_id, evaluation_id)
    pair, count = judgements.next_pair(db, evaluation)
    answers = [] if pair is None else [pair.base.answer, pair.tuned.answer]
    if pair is not None and judgements.is_shown_swapped(pair.tuned.position):
        answers.reverse()
    return page(
        request,
        "runs/vote.html",
        run=run,
        evaluation=evaluation,
        pair=pair,
        answers=answers,
        count=count,
        wanted=judging.MIN_PEOPLE,
        back=_address(run_id, evaluation_id),
    )


@router.post(_PREFIX + "/vote")
def vote(
    request: Request, run_id: int, evaluation_id: int, db: DB, posted: Annotated[VoteForm, Form()]
) -> Response:
    evaluation = evaluations.get(db, run_id, evaluation_id)
    judgements.vote_blind(db, evaluation, posted.position, posted.choice)
    return redirect(request, f"/runs/{run_id}/evaluations/{evaluation_id}/vote")


def _address(run_id: int, evaluation_id: int) -> str:
    return f"/runs/{run_id}/evaluation?number={evaluation_id}#judgements"
