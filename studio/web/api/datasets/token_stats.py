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
from studio.web.datasets import token_stats as shown
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
    chore = token_stats.latest_task(
        db, shown.stats_selection(db, datasets.get(db, dataset_id), wanted)
    )
    if chore is None:
        raise NotFoundError(
            "The tokens of this dataset have not been counted for this model and chat template.",
            hint="POST the same fields to this URL to count them.",
        )
    return _stats_response(response, chore, wanted.max_length)


@router.post("", status_code=202)
def count(
    response: Response, dataset_id: Id, db: DB, config: Config, wanted: TokenStatsRequest
) -> TokenStatsAnswer:
    """Start a task that counts tokens; returns 200 with the statistics if already counted."""
    which = shown.stats_selection(db, datasets.get(db, dataset_id), wanted)
    chore = token_stats.enqueue(db, config, which)
    return _stats_response(response, chore, wanted.max_length)


def _stats_response(response: Response, chore: Task, at: int) -> TokenStatsAnswer:
    found = token_stats.parse_result(chore)
    response.status_code = 200 if found else 202
    if found is None:
        return TokenStatsAnswer(chore=chore_out(chore))
    return TokenStatsAnswer(stats=_stats_out(shown.build_figures(found, at)))


def _stats_out(figures: shown.StatsFigures) -> StatsOut:
    sides = {side.part: _part_out(side) for side in figures.sides}
    return StatsOut(
        sentence=figures.sentence, train=sides["train"], validation=sides.get("validation")
    )


def _part_out(side: shown.PartView) -> PartOut:
    tally = side.tally
    return PartOut(
        rows=tally.rows,
        tokens=tally.tokens,
        learnt=tally.learnt,
        unlearnt=tally.unlearnt,
        left_out=tally.left_out,
        roles={
            name: RoleOut(tokens=tokens, learnt=tally.learnt_roles[name])
            for name, tokens in tally.roles.items()
        },
        lengths=dict(side.lengths),
        cut=TruncationOut.model_validate(side.lost),
        histogram=[BarOut.model_validate(one) for one in side.bars],
        longest=[RowLengthOut.model_validate(one) for one in tally.longest],
        shortest=[RowLengthOut.model_validate(one) for one in tally.shortest],
        refused=[
            RefusedRowsOut(reason=reason, rows=rows.rows, numbers=rows.numbers)
            for reason, rows in tally.refused.items()
        ],
    )
