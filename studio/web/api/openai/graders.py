"""Graders of the OpenAI-compatible API: check one, and try it on an answer."""

from typing import Annotated, Any

from annotated_types import Len
from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool

from studio.db.session import read_session
from studio.graders.grades import Grade, GraderErrors
from studio.graders.grading import Grading
from studio.graders.schema import Grader
from studio.graders.templates import Sample
from studio.services.graders import judges
from studio.web.api.openai import grader_models
from studio.web.api.openai.schemas import Body, Out, check_fields

router = APIRouter(prefix="/v1/fine_tuning/alpha/graders", tags=["openai"])


class GraderBody(Body):
    grader: Grader


class GraderRunBody(GraderBody):
    model_sample: Annotated[str, Len(0, 1_000_000)]
    """The answer to score; `sample` in templates and programs."""
    item: Any = None
    """The row that it answers; `item` in templates and programs."""


class GraderOut(Out):
    grader: Grader


class GradeStudioOut(Out):
    """Fields that OpenAI's API does not have."""

    messages: list[str]
    """Sentences on what went wrong, and on scores that were clipped to their range."""
    unclipped: float | None
    """The score before it was clipped; null if it was within its range."""
    python: list[str]
    """How the processes of Python graders were sealed."""


class GradeMetadataOut(Out):
    name: str
    type: str
    errors: GraderErrors
    execution_time: float
    """In seconds."""
    scores: dict[str, float | None]
    token_usage: int | None
    sampled_model_name: str | None
    x_studio: GradeStudioOut


class GradeOut(Out):
    reward: float | None
    """The score; null if there was an error, which is never a score of 0."""
    sub_rewards: dict[str, float | None]
    """Of a `multi` grader: the scores of its graders."""
    metadata: GradeMetadataOut
    model_grader_token_usage_per_model: dict[str, int]


@router.post("/validate", response_model_exclude_unset=True)
async def validate(sent: GraderBody, request: Request) -> GraderOut:
    """Check a grader: its fields, templates and formula, its models, and its programs."""
    check_fields(sent, (), {})
    async with request.app.state.grader_slots:
        await run_in_threadpool(_check, request, sent.grader)
    return GraderOut(grader=sent.grader)


@router.post("/run")
async def run(sent: GraderRunBody, request: Request) -> GradeOut:
    """Score an answer to a row."""
    check_fields(sent, (), {})
    async with request.app.state.grader_slots:
        return await run_in_threadpool(_grade, request, sent)


def _check(request: Request, grader: Grader) -> None:
    """Check what only this studio knows of a grader.

    Raises:
        InvalidError: A program cannot be loaded, or a model cannot judge.
        NotFoundError: There is no model of that name.

    """
    settings = request.app.state.settings
    with read_session(request.app.state.engine) as db:
        judges.check_models(db, settings, grader)
    with Grading(grader, settings.python_graders) as grading:
        grading.load_programs()


def _grade(request: Request, sent: GraderRunBody) -> GradeOut:
    settings = request.app.state.settings
    item = {} if sent.item is None else sent.item

    ask = grader_models.ask_for(request, sent.grader)
    with Grading(sent.grader, settings.python_graders, ask_model=ask) as grading:
        grade = grading.grade(Sample(sent.model_sample), item)
        return _grade_out(grade, grading.seals)


def _grade_out(grade: Grade, seals: list[str]) -> GradeOut:
    usage: dict[str, int] = {}
    for one in (grade, *grade.parts.values()):
        if one.model and one.tokens:
            usage[one.model] = usage.get(one.model, 0) + one.tokens
    return GradeOut(
        reward=grade.reward,
        sub_rewards={name: part.reward for name, part in grade.parts.items()},
        metadata=GradeMetadataOut(
            name=grade.name,
            type=grade.type,
            errors=grade.errors,
            execution_time=grade.seconds,
            scores={grade.name: grade.reward},
            token_usage=sum(usage.values()) or None,
            sampled_model_name=grade.model,
            x_studio=GradeStudioOut(
                messages=list(grade.messages), unclipped=grade.unclipped, python=seals
            ),
        ),
        model_grader_token_usage_per_model=usage,
    )
