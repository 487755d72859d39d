"""REST routes of the answers that a run learns from, with their scores."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, Field

from studio.errors import NotFoundError
from studio.protocols.rollouts import Stage
from studio.protocols.run_dir import RunDir
from studio.services.runs import rollouts, runs
from studio.services.runs.rollouts import Group, Order
from studio.web.api import conventions as api
from studio.web.http.deps import DB, Config

router = APIRouter(route_class=api.ApiRoute, prefix="/api/v1/runs/{run_id}", tags=["runs"])

CHUNK_BYTES = 2**20
"""Bytes per read of a download."""

StepNumber = Annotated[int, Field(ge=0, lt=2**63)]


class RolloutQuery(BaseModel):
    """The prompts to list, and their order."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    stage: Stage = "training"
    step: StepNumber | None = None
    """The newest one by default."""
    sort: Order = "row"
    """The order of the answers to a prompt, and of the prompts."""
    after: Annotated[int, Field(ge=0, lt=2**31)] = 0
    """How many prompts to skip."""
    limit: Annotated[int, Field(ge=1, le=500)] = 50


class RolloutStepOut(api.Out):
    """A step that there are answers of."""

    step: int
    prompts: int


class ScoredAnswerOut(api.Out):
    """One answer and its score."""

    text: str
    """Of a very long answer, its first 20,000 characters."""
    reward: float | None
    """The score; null if the grader could not score it."""
    parts: dict[str, float | None]
    """What each part of a `multi` grader gave, by name."""
    messages: list[str]
    """What graders said of errors, and of scores that were clipped."""
    tokens: int
    is_cut_off: bool


class RolloutOut(api.Out):
    """The answers to one prompt at one step."""

    step: int
    stage: Stage
    row: int
    """The row's number in its part of the dataset, from 1."""
    prompt: str
    """The last message of the prompt."""
    mean: float | None
    """The mean score of its answers; null without any."""
    answers: list[ScoredAnswerOut]


@router.get("/rollouts")
def listing(
    run_id: api.Id, db: DB, config: Config, query: Annotated[RolloutQuery, Query()]
) -> api.Listing[RolloutOut]:
    """List the prompts of a step with the answers that the run learned from, and their scores.

    Of a step with more than 16 MiB of answers, only the first are listed; the download has them
    all.
    """
    index = _open_index(db, config, run_id)
    steps = index.list_steps(query.stage)
    place = rollouts.nearest(steps, query.step)
    if query.step is not None and (not steps or steps[place].number != query.step):
        raise NotFoundError(
            f"Run {run_id} has no {query.stage} answers of step {query.step}.",
            hint=f"/runs/{run_id}/rollouts/steps lists the steps that it has.",
        )
    records = rollouts.read_groups(index.path, steps[place]) if steps else []
    groups = rollouts.sort_groups(records, query.sort)
    last = query.after + query.limit
    return api.Listing(
        data=[_group_out(group) for group in groups[query.after : last]],
        has_more=len(groups) > last,
        next_after=last if len(groups) > last else None,
    )


@router.get("/rollouts/steps")
def steps(
    run_id: api.Id,
    db: DB,
    config: Config,
    stage: Stage = "training",
    after: Annotated[int, Query(ge=-1, lt=2**63)] = -1,
    limit: api.Limit = 500,
) -> api.Listing[RolloutStepOut]:
    """List the steps that there are answers of, oldest first; `after` is a step.

    A run that writes the answers of several steps at once keeps them with the first of these.
    """
    found = [
        RolloutStepOut(step=one.number, prompts=one.prompts)
        for one in _open_index(db, config, run_id).list_steps(stage)
        if one.number > after
    ]
    has_more = len(found) > limit
    return api.Listing(
        data=found[:limit],
        has_more=has_more,
        next_after=found[limit - 1].step if has_more else None,
    )


@router.get("/rollouts.jsonl", response_class=StreamingResponse)
def download(run_id: api.Id, db: DB, config: Config) -> StreamingResponse:
    """Download all answers so far as JSON Lines: a line for each prompt of each step."""
    index = _open_index(db, config, run_id)
    size = index.find_end()
    if not size:
        raise NotFoundError(
            f"Run {run_id} has kept no answers.",
            hint="It has not written any yet, or their file was deleted.",
        )
    name = f"run-{run_id}-scored-answers.jsonl"
    return StreamingResponse(
        _read_chunks(index.path, size),
        media_type="application/jsonl",
        headers={"Content-Disposition": f'attachment; filename="{name}"'},
    )


def _open_index(db: DB, config: Config, run_id: int) -> rollouts.RolloutIndex:
    run = runs.get(db, run_id)
    rollouts.require(run)
    return rollouts.open_index(RunDir(config.runs / str(run.id)).rollouts)


def _read_chunks(path: Path, size: int) -> Iterator[bytes]:
    """Yield the lines that are complete: the file may grow meanwhile."""
    with path.open("rb") as file:
        while size > 0 and (chunk := file.read(min(CHUNK_BYTES, size))):
            size -= len(chunk)
            yield chunk


def _group_out(group: Group) -> RolloutOut:
    return RolloutOut(
        step=group.record.step,
        stage=group.record.stage,
        row=group.record.row,
        prompt=group.record.prompt,
        mean=group.mean,
        answers=[ScoredAnswerOut.model_validate(answer) for answer in group.answers],
    )
