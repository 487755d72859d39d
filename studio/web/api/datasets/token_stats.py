"""How long the rows of a data set are, in tokens, and what a longest example would cost."""

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
    """What is lost where examples may have no more than so many tokens."""

    at: int
    rows: int
    """That are longer."""
    tokens: int
    """Behind the cut."""
    learnt: int
    """Of those, how many would have been learnt."""
    emptied: int
    """Rows that are cut before anything they teach."""
    is_exact: bool
    """Else figures may be those of the multiple of 1,024 below: more than 10,000 different lengths
    were counted, and this one is above 8,192."""


class BarOut(Out):
    """Rows of `first` to `last` tokens."""

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
    """Rows that the chat template will not write."""

    reason: str
    rows: int
    numbers: list[int]
    """Of the first of them."""


class PartOut(Out):
    rows: int
    tokens: int
    learnt: int
    unlearnt: int
    """Rows without anything to learn, however long an example may be."""
    left_out: int
    """Rows whose answer was judged bad."""
    roles: dict[str, RoleOut]
    """By who says it; `text` of rows without turns, `template` is what is written around."""
    lengths: dict[str, int]
    """Shortest, median, mean, p95, p99 and longest."""
    cut: TruncationOut
    histogram: list[BarOut]
    longest: list[RowLengthOut]
    shortest: list[RowLengthOut]
    refused: list[RefusedRowsOut]


class StatsOut(Out):
    sentence: str
    """What the cut does, in words."""
    train: PartOut
    validation: PartOut | None
    """Null where each run holds a share of the rows back."""


class TokenStatsAnswer(Out):
    """One of the two."""

    stats: StatsOut | None = None
    chore: TaskOut | None = None
    """What counts, or has failed to."""


@router.get("", responses={202: {"model": TokenStatsAnswer, "description": "It is being counted."}})
def show(
    response: Response, dataset_id: Id, db: DB, wanted: Annotated[TokenStatsRequest, Query()]
) -> TokenStatsAnswer:
    """Tell what was counted. 202 while it is being counted; 404 where nobody has asked for it."""
    chore = token_stats.latest_task(
        db, shown.stats_selection(db, datasets.get(db, dataset_id), wanted)
    )
    if chore is None:
        raise NotFoundError(
            "The tokens of this data set were not counted for this model and chat template.",
            hint="POST the same to the same address has them counted.",
        )
    return _stats_response(response, chore, wanted.max_length)


@router.post("", status_code=202)
def count(
    response: Response, dataset_id: Id, db: DB, config: Config, wanted: TokenStatsRequest
) -> TokenStatsAnswer:
    """Have the tokens counted by a chore; 200 with the figures where they are counted already."""
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
