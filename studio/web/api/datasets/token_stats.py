"""REST routes of token statistics: row lengths, and what a maximum length truncates."""

from typing import Annotated

from fastapi import APIRouter, Query, Response
from pydantic import ConfigDict

from studio.db.tasks import Task
from studio.errors import NotFoundError
from studio.services.datasets import datasets, token_stats
from studio.web.api.conventions.api_route import ApiRoute
from studio.web.api.conventions.schemas import Id, Out
from studio.web.api.system.tasks import TaskOut
from studio.web.api.system.tasks import task_out as chore_out
from studio.web.datasets import token_stats_page as shown
from studio.web.http.deps import DB, Config

router = APIRouter(
    route_class=ApiRoute, prefix="/api/v1/datasets/{dataset_id}/stats", tags=["datasets"]
)


class TokenStatsRequest(shown.StatsQuery):
    model_config = ConfigDict(extra="forbid")


class TruncationOut(Out):
    """What truncation at a maximum sequence length removes."""

    at: int
    """The maximum length in tokens."""
    rows: int
    """Rows that are longer."""
    tokens: int
    """Truncated tokens."""
    learnt: int
    """Truncated tokens that would have been trained on."""
    emptied: int
    """Rows that lose every token that would have been trained on."""
    is_exact: bool
    """If false, the figures may be those of the next lower multiple of 1,024: there are more than
    10,000 distinct lengths and this one is above 8,192."""


class BarOut(Out):
    """Rows with `first` to `last` tokens."""

    first: int
    last: int
    rows: int
    cut: int


class RowLengthOut(Out):
    number: int
    tokens: int


class RoleOut(Out):
    tokens: int
    learnt: int


class RefusedRowsOut(Out):
    """Rows that the chat template rejects."""

    reason: str
    rows: int
    numbers: list[int]
    """The numbers of the first of these rows."""


class PartOut(Out):
    rows: int
    tokens: int
    learnt: int
    unlearnt: int
    """Rows without any token to train on, whatever the maximum length."""
    left_out: int
    """Rows whose answer was rated bad."""
    roles: dict[str, RoleOut]
    """By role; `text` for rows without messages, `template` for tokens of the chat template."""
    lengths: dict[str, int]
    """Shortest, median, mean, p95, p99 and longest, in tokens."""
    cut: TruncationOut
    histogram: list[BarOut]
    longest: list[RowLengthOut]
    shortest: list[RowLengthOut]
    refused: list[RefusedRowsOut]


class StatsOut(Out):
    sentence: str
    """The effect of truncation, in one sentence."""
    train: PartOut
    validation: PartOut | None
    """Null if each run holds out a share of the rows for validation."""


class TokenStatsAnswer(Out):
    """Either the statistics or the task that computes them."""

    stats: StatsOut | None = None
    chore: TaskOut | None = None
    """The task that counts tokens, or has failed to."""


@router.get("", responses={202: {"model": TokenStatsAnswer, "description": "Still counting."}})
def show(
    response: Response, dataset_id: Id, db: DB, wanted: Annotated[TokenStatsRequest, Query()]
) -> TokenStatsAnswer:
    """Return the token statistics: 202 while counting; 404 if counting was never requested."""
    task = token_stats.latest_task(
        db, shown.stats_selection(db, datasets.get(db, dataset_id), wanted)
    )
    if task is None:
        raise NotFoundError(
            "The tokens of this dataset have not been counted for this model and chat template.",
            hint="POST the same fields to this URL to count them.",
        )
    return _stats_response(response, task, wanted.max_length)


@router.post("", status_code=202)
def count(
    response: Response, dataset_id: Id, db: DB, config: Config, wanted: TokenStatsRequest
) -> TokenStatsAnswer:
    """Start a task that counts tokens; returns 200 with the statistics if already counted."""
    selection = shown.stats_selection(db, datasets.get(db, dataset_id), wanted)
    task = token_stats.enqueue(db, config, selection)
    return _stats_response(response, task, wanted.max_length)


def _stats_response(response: Response, task: Task, max_length: int) -> TokenStatsAnswer:
    stats = token_stats.parse_result(task)
    response.status_code = 200 if stats else 202
    if stats is None:
        return TokenStatsAnswer(chore=chore_out(task))
    return TokenStatsAnswer(stats=_stats_out(shown.build_figures(stats, max_length)))


def _stats_out(figures: shown.StatsFigures) -> StatsOut:
    parts = {part.part: _part_out(part) for part in figures.parts}
    return StatsOut(
        sentence=figures.summary, train=parts["train"], validation=parts.get("validation")
    )


def _part_out(part: shown.PartView) -> PartOut:
    counts = part.counts
    return PartOut(
        rows=counts.rows,
        tokens=counts.tokens,
        learnt=counts.learnt,
        unlearnt=counts.unlearnt,
        left_out=counts.left_out,
        roles={
            name: RoleOut(tokens=tokens, learnt=counts.learnt_roles[name])
            for name, tokens in counts.roles.items()
        },
        lengths=dict(part.lengths),
        cut=TruncationOut.model_validate(part.truncation),
        histogram=[BarOut.model_validate(item) for item in part.bars],
        longest=[RowLengthOut.model_validate(item) for item in counts.longest],
        shortest=[RowLengthOut.model_validate(item) for item in counts.shortest],
        refused=[
            RefusedRowsOut(reason=reason, rows=rows.rows, numbers=rows.numbers)
            for reason, rows in counts.refused.items()
        ],
    )
