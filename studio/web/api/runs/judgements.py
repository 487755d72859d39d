"""REST routes of judgements: a judge says which answers of an evaluation are better."""

from datetime import datetime
from typing import Annotated, Literal

from fastapi import APIRouter
from pydantic import Field

from studio.db.states import TaskStatus
from studio.evaluation.judging import PairVerdict
from studio.services.evaluations import evaluations, judgements
from studio.services.evaluations.judgements import Judged
from studio.web.api import conventions as api
from studio.web.api.runs.evaluations import FigureOut
from studio.web.http.deps import DB, Config

router = APIRouter(
    route_class=api.ApiRoute,
    prefix="/api/v1/runs/{run_id}/evaluations/{evaluation_id}",
    tags=["evaluations"],
)


class NewJudgement(api.Body):
    judge: Annotated[str, Field(max_length=1200)]
    """`endpoint` (STUDIO_JUDGE_URL), `reward:12` (the reward model of run 12), or `model:` and the
    name of a model as in `/v1/models`."""
    pairs: Annotated[int, Field(ge=1, le=judgements.MAX_PAIRS)] = judgements.DEFAULT_PAIRS
    """How many rows to judge, each in both orders."""


class JudgedPairOut(api.Out):
    number: int
    """The row's number in its part of the dataset, from 1."""
    verdict: PairVerdict
    """`base` or `tuned` if the judge chose it in both orders; `tie` if it contradicted itself."""
    replies: list[str]
    """What the judge wrote: with the base model's answer as A, then as B."""


class AgreementOut(api.Out):
    n: int
    share: float
    """The share of pairs with equal verdicts."""
    kappa: float | None
    """Cohen's κ: agreement beyond chance."""


class JudgementOut(api.Out):
    id: int
    judge: str
    status: TaskStatus
    progress: float
    error: str
    verdict: str
    """In one sentence; empty until there is one."""
    wins: int
    losses: int
    ties: int
    unreadable: int
    win_rate: FigureOut | None
    """Wins and half of the ties, as a share of the pairs that could be read."""
    flipped_share: float
    """The share of pairs in which the judge chose the same place in both orders."""
    is_reliable: bool
    """False if that share is above 0.3."""
    agreement: AgreementOut | None
    """With people who judged the same pairs; null without any."""
    pairs: list[JudgedPairOut]
    created_at: datetime


@router.post("/judgements", status_code=api.ACCEPTED)
def judge(
    run_id: api.Id, evaluation_id: api.Id, new: NewJudgement, db: DB, config: Config
) -> JudgementOut:
    """Let a judge compare the answers of both models, in the background."""
    evaluation = evaluations.get(db, run_id, evaluation_id)
    made = judgements.create(db, config, evaluation, new.judge, new.pairs)
    return _out(judgements.load(db, evaluation, made.id or 0))


@router.get("/judgements")
def newest(run_id: api.Id, evaluation_id: api.Id, db: DB) -> api.Listing[JudgementOut]:
    evaluation = evaluations.get(db, run_id, evaluation_id)
    found = judgements.list_for_evaluation(db, evaluation)
    return api.Listing.complete(_out(one) for one in found)


@router.get("/judgements/{judgement_id}")
def show(run_id: api.Id, evaluation_id: api.Id, judgement_id: api.Id, db: DB) -> JudgementOut:
    evaluation = evaluations.get(db, run_id, evaluation_id)
    return _out(judgements.load(db, evaluation, judgement_id))


@router.delete("/judgements/{judgement_id}", status_code=204)
def delete(run_id: api.Id, evaluation_id: api.Id, judgement_id: api.Id, db: DB) -> None:
    judgements.delete(db, evaluations.get(db, run_id, evaluation_id), judgement_id)


class Vote(api.Body):
    number: Annotated[int, Field(ge=1)]
    """The row's number, as in the rows of the evaluation."""
    verdict: Literal["base", "tuned", "tie"]


@router.post("/votes", status_code=204)
def vote(run_id: api.Id, evaluation_id: api.Id, voted: Vote, db: DB) -> None:
    """Say which answer to a row is better. Judges are compared with what people say."""
    evaluation = evaluations.get(db, run_id, evaluation_id)
    position = judgements.find_position(db, evaluation, voted.number)
    judgements.vote(db, evaluation, position, voted.verdict)


def _out(judged: Judged) -> JudgementOut:
    result, agreement = judged.result, judged.agreement
    rate = result.win_rate if result else None
    return JudgementOut(
        id=judged.judgement.id or 0,
        judge=judged.judgement.title,
        status=judged.progress.status,
        progress=judged.progress.share,
        error=judged.progress.message,
        verdict=result.sentence if result else "",
        wins=result.wins if result else 0,
        losses=result.losses if result else 0,
        ties=result.ties if result else 0,
        unreadable=result.unreadable if result else 0,
        win_rate=FigureOut.model_validate(rate) if rate else None,
        flipped_share=result.flipped_share if result else 0.0,
        is_reliable=result.is_reliable if result else True,
        agreement=AgreementOut.model_validate(agreement) if agreement else None,
        pairs=[
            JudgedPairOut(
                number=row.number,
                verdict=verdict,
                replies=[answers.base_first_reply, answers.tuned_first_reply],
            )
            for row, answers, verdict in judged.pairs
        ],
        created_at=judged.judgement.created_at,
    )
