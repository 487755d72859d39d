"""REST routes of evaluations: a run's model and its base model on the same rows."""

from datetime import datetime
from typing import Annotated, Literal

from fastapi import APIRouter, Query
from pydantic import Field
from sqlmodel import Session

from studio.db.evaluations import AnswerSet, Evaluation
from studio.db.states import TaskStatus
from studio.errors import ConflictError
from studio.evaluation.rows import AnsweredRow
from studio.services.evaluations import evaluation_results, evaluations
from studio.services.evaluations.answer_sets import AnswerProgress
from studio.services.evaluations.evaluation_results import (
    EvaluationResults,
    MetricResult,
    RowOrder,
    RowPair,
)
from studio.services.evaluations.evaluations import EvaluationRequest
from studio.services.runs import runs
from studio.web.api import conventions as api
from studio.web.http.deps import DB, Config

router = APIRouter(
    route_class=api.ApiRoute, prefix="/api/v1/runs/{run_id}/evaluations", tags=["evaluations"]
)


class NewEvaluation(api.Body):
    dataset: Annotated[str, Field(max_length=200)] = ""
    """The name of a dataset; empty asks the rows that the run held out for validation."""
    rows: Annotated[int, Field(ge=1, le=evaluations.MAX_ROWS)] = evaluations.DEFAULT_ROWS
    """How many rows. If there are more, the same ones are chosen every time."""
    max_new_tokens: Annotated[int, Field(ge=1, le=evaluations.MAX_NEW_TOKENS)] = (
        evaluations.DEFAULT_NEW_TOKENS
    )
    """The length at which answers are cut off."""


class AnsweringOut(api.Out):
    """How far a model has come with answering."""

    model: str
    """Its name. A model that writes no text is compared with a rule, which has a title instead."""
    status: TaskStatus
    progress: float
    error: str
    """Why it failed; empty otherwise."""
    computed_in: str
    """The number format it computed in; empty until it is finished."""


class FigureOut(api.Out):
    """A value with its 95 % interval."""

    value: float
    low: float
    high: float
    n: int
    """Rows that count."""


class DifferenceOut(api.Out):
    """The tuned model's value less the base model's, on rows that both answered."""

    difference: float
    low: float
    high: float
    n: int
    p: float | None
    """How probable so uneven a split is by chance (exact McNemar test); null if rows are not just
    right or wrong."""
    only_first: int
    """Rows that only the base model got right."""
    only_second: int
    """Rows that only the tuned model got right."""
    is_clear: bool
    """Whether chance hardly explains the difference."""
    rows_needed: int | None
    """About how many rows would make this difference clear."""


class MetricResultOut(api.Out):
    key: str
    title: str
    unit: str
    better: Literal["higher", "lower", "neither"]
    signature: str
    """How exactly it is computed: only values with equal signatures compare."""
    decides: bool
    """Whether the verdict is about it."""
    base: FigureOut
    tuned: FigureOut
    comparison: DifferenceOut


class EvaluationOut(api.Out):
    id: int
    run_id: int
    dataset: str
    is_held_out: bool
    rows: int
    """The number of rows that were asked for."""
    base: AnsweringOut
    tuned: AnsweringOut
    verdict: str
    """In one sentence; empty until both models have answered."""
    overlap: str
    """How many rows can also be found in the training data; empty if none."""
    clean_verdict: str
    """The verdict on the rows that are not in the training data; empty if all are, or none."""
    metrics: list[MetricResultOut]
    created_at: datetime


class AnswerOut(api.Out):
    answer: str
    reason: Literal["stop", "length"]
    """`length` if the answer was cut off."""
    tokens: int
    score: float | None
    """The value of the deciding metric for this row alone; null if it does not count. Of numbers,
    it is the error, as R² needs several rows."""
    nll: float | None
    """The loss of the reference in nats, summed over `nll_tokens`."""
    nll_tokens: int


class RowOut(api.Out):
    number: int
    """The row's number in its part of the dataset, from 1."""
    prompt: str
    reference: str
    overlap: Literal["", "exact", "ngram"]
    """How the row occurs in the training data of the run, if it does."""
    base: AnswerOut
    tuned: AnswerOut


@router.post("", status_code=api.ACCEPTED)
def evaluate(run_id: api.Id, new: NewEvaluation, db: DB, config: Config) -> EvaluationOut:
    """Evaluate a run's model against its base model, in the background.

    A model that gives labels, numbers, scores, verdicts or entities is compared with a simple rule
    instead, such as the most common label.

    An equal evaluation is returned as it is; parts of it that failed are tried again.
    """
    asked = EvaluationRequest(dataset=new.dataset, rows=new.rows, max_new_tokens=new.max_new_tokens)
    return _evaluation_out(db, evaluations.create(db, config, run_id, asked))


@router.get("")
def newest(run_id: api.Id, db: DB) -> api.Listing[EvaluationOut]:
    runs.get(db, run_id)
    found = evaluations.list_for_run(db, run_id)
    return api.Listing.complete(_evaluation_out(db, evaluation) for evaluation in found)


@router.get("/{evaluation_id}")
def show(run_id: api.Id, evaluation_id: api.Id, db: DB) -> EvaluationOut:
    return _evaluation_out(db, evaluations.get(db, run_id, evaluation_id))


@router.get("/{evaluation_id}/rows")
def rows(
    run_id: api.Id,
    evaluation_id: api.Id,
    db: DB,
    sort: RowOrder = "row",
    after: Annotated[int, Query(ge=0, le=evaluations.MAX_ROWS)] = 0,
    limit: api.Limit = 100,
) -> api.Listing[RowOut]:
    """List rows with both answers; `after` counts rows that are skipped."""
    results = evaluation_results.load(db, evaluations.get(db, run_id, evaluation_id))
    if results is None:
        raise ConflictError(
            "The models have not answered all rows yet.", hint="Try again when they have."
        )
    sorted_rows = results.sort_rows(sort)
    last = after + limit
    return api.Listing(
        data=[_row_out(row) for row in sorted_rows[after:last]],
        has_more=len(sorted_rows) > last,
        next_after=last if len(sorted_rows) > last else None,
    )


@router.delete("/{evaluation_id}", status_code=204)
def delete(run_id: api.Id, evaluation_id: api.Id, db: DB) -> None:
    """Delete an evaluation, and the answers that no other one uses."""
    evaluations.delete(db, run_id, evaluation_id)


def _evaluation_out(db: Session, evaluation: Evaluation) -> EvaluationOut:
    results = evaluation_results.load(db, evaluation)
    base, tuned = (
        _answering_out(db.get_one(AnswerSet, set_id), progress)
        for set_id, progress in zip(
            (evaluation.base_id, evaluation.tuned_id),
            evaluations.find_progress(db, evaluation),
            strict=True,
        )
    )
    return EvaluationOut(
        **evaluation.model_dump(include={"id", "run_id", "dataset", "is_held_out", "rows"}),
        base=base,
        tuned=tuned,
        verdict=results.verdict if results else "",
        overlap=results.overlap if results else "",
        clean_verdict=results.clean_verdict if results else "",
        metrics=[_metric_out(results, one) for one in results.results] if results else [],
        created_at=evaluation.created_at,
    )


def _answering_out(answers: AnswerSet, progress: AnswerProgress) -> AnsweringOut:
    return AnsweringOut(
        model=answers.model,
        status=progress.status,
        progress=progress.share,
        error=progress.message,
        computed_in=answers.computed_in,
    )


def _metric_out(results: EvaluationResults, result: MetricResult) -> MetricResultOut:
    metric = result.metric
    return MetricResultOut(
        key=metric.key,
        title=metric.title,
        unit=metric.unit,
        better=metric.better,
        signature=result.signature,
        decides=metric.key == results.primary.key,
        base=FigureOut.model_validate(result.base),
        tuned=FigureOut.model_validate(result.tuned),
        comparison=DifferenceOut.model_validate(result.comparison),
    )


def _row_out(row: RowPair) -> RowOut:
    return RowOut(
        number=row.number,
        prompt=row.prompt,
        reference=row.reference,
        overlap=row.overlap,
        base=_answer_out(row.base, row.base_score),
        tuned=_answer_out(row.tuned, row.tuned_score),
    )


def _answer_out(row: AnsweredRow, score: float | None) -> AnswerOut:
    return AnswerOut(
        answer=row.answer,
        reason=row.reason,
        tokens=row.tokens,
        score=score,
        nll=row.nll,
        nll_tokens=row.nll_tokens,
    )
