"""REST routes that try a grader on rows of a dataset; the graders page uses them, too."""

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Le, Len
from fastapi import APIRouter, Request, Response
from starlette.concurrency import run_in_threadpool

from studio.db.session import read_session, unit_of_work
from studio.db.states import TaskStatus
from studio.db.tasks import Task
from studio.graders.grades import GraderErrors
from studio.graders.schema import Grader
from studio.protocols.grader_trials import GradedAnswer, TrialResult, TriedRow
from studio.protocols.tokenizer_service import TemplateSource
from studio.services.graders import judges, trials
from studio.services.graders.trials import Source, TrialRequest
from studio.web.api import conventions as api
from studio.web.api.openai import grader_models
from studio.web.http.deps import DB

router = APIRouter(route_class=api.ApiRoute, prefix="/api/v1/graders", tags=["graders"])


class NewTrial(api.Body):
    grader: Grader
    """In OpenAI's grader JSON."""
    dataset: api.Name
    """The name of a dataset of tasks, conversations or preferences."""
    rows: Annotated[int, Ge(1), Le(trials.MAX_ROWS)] = trials.DEFAULT_ROWS
    """How many rows; they are chosen evenly at random, always the same."""
    source: Source = "expected"
    """Which answers are graded: the expected one of each row, a text, or those of a model."""
    text: Annotated[str, Len(0, 1_000_000)] = ""
    """With `text`: the answer to each row."""
    model: Annotated[str, Len(0, 1000)] = ""
    """With `model`: what answers, by its name in `/v1/models`."""
    answers: Annotated[int, Ge(1), Le(trials.MAX_ANSWERS)] = trials.DEFAULT_ANSWERS
    """With `model`: how many answers each row gets, sampled at temperature 1."""
    max_new_tokens: Annotated[int, Ge(1), Le(trials.MAX_NEW_TOKENS)] = trials.DEFAULT_NEW_TOKENS
    chat_template: TemplateSource = "model"

    def to_request(self) -> TrialRequest:
        return TrialRequest(**self.model_dump(exclude={"grader"}))


class TriedAnswerOut(api.Out):
    text: str
    is_cut_off: bool
    """Whether it reached its maximum length."""
    score: float | None
    """Null if there was an error, which is never a score of 0."""
    parts: dict[str, float | None]
    """Of a `multi` grader: the scores of its graders."""
    errors: GraderErrors
    messages: list[str]
    """Sentences on what went wrong, and on scores that were clipped to their range."""
    seconds: float
    """How long grading took."""


class TriedRowOut(api.Out):
    number: int
    """The row's number in the dataset, from 1."""
    prompt: str
    """The last turn of the prompt."""
    answers: list[TriedAnswerOut]


class SummaryOut(api.Out):
    mean: float | None
    spread: float | None
    """The mean over rows of the standard deviation of the scores of their answers."""
    share_without_spread: float | None
    """The share of rows whose answers all have the same score: nothing is learned from them."""
    errors: int
    count: int
    """Answers with a score."""


class TrialOut(api.Out):
    task: int | None
    """The background task in which a model answers; null if the answers were graded at once."""
    status: TaskStatus
    progress: float
    error: str
    verdict: Literal["refused", "doubtful", "good"] | None
    """`refused` if nothing can be learned from such scores; null until there are scores."""
    sentence: str
    """Why, in a sentence."""
    summary: SummaryOut | None
    rows: list[TriedRowOut]
    python: list[str]
    """How the processes of Python graders were sealed."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a trial has come to: its grades, or the task that is to find them."""

    task: Task | None
    result: TrialResult | None


@router.post("/trials")
async def create(request: Request, sent: NewTrial, response: Response) -> TrialOut:
    """Grade answers to rows of a dataset.

    A model answers in the background: the status is 202 then, unless the same answers are known
    from an earlier trial.
    """
    asked = sent.to_request()
    outcome = await run(request, sent.grader, asked)
    if outcome.task is not None:
        response.status_code = api.ACCEPTED
    return trial_out(outcome, asked.source)


@router.get("/trials/{task_id}")
def show(task_id: api.Id, db: DB) -> TrialOut:
    """Return a trial of a model's answers as far as it has come."""
    task = trials.get(db, task_id)
    return trial_out(Outcome(task, trials.find_result(task)), "model")


async def run(request: Request, grader: Grader, asked: TrialRequest) -> Outcome:
    """Grade answers, or start the task in which a model writes them.

    Raises:
        StudioError: The rows, the model or a judge cannot be used.

    """
    async with request.app.state.grader_slots:
        return await run_in_threadpool(_run, request, grader, asked)


def _run(request: Request, grader: Grader, asked: TrialRequest) -> Outcome:
    """Do so in a thread. No session is open while answers are graded: a judge may be slow."""
    engine, settings = request.app.state.engine, request.app.state.settings
    with read_session(engine) as db:
        judges.check_models(db, settings, grader)
        if asked.source == "model":
            job = trials.plan(db, settings, grader, asked)
            rows, answers = job.rows, trials.find_answers(db, job)
        else:
            rows = trials.load_rows(db, settings, asked.dataset, asked.rows)
            answers = trials.given_answers(grader, rows, asked)
    if answers is None:
        with unit_of_work(engine) as db:
            return Outcome(trials.start(db, job), None)
    ask = grader_models.ask_for(request, grader)
    return Outcome(None, trials.grade(grader, rows, answers, settings.python_graders, ask))


def trial_out(outcome: Outcome, source: Source) -> TrialOut:
    task, result = outcome.task, outcome.result
    verdict = trials.judge_result(source, result) if result else None
    message = f"{task.error_message} {task.error_hint}".strip() if task else ""
    return TrialOut(
        task=task.id if task else None,
        status=task.status if task else TaskStatus.SUCCEEDED,
        progress=task.share if task else 1.0,
        error=message,
        verdict=verdict.kind if verdict else None,
        sentence=verdict.text if verdict else "",
        summary=SummaryOut.model_validate(result.summary) if result else None,
        rows=[_row_out(row) for row in result.rows] if result else [],
        python=result.seals if result else [],
    )


def _row_out(row: TriedRow) -> TriedRowOut:
    return TriedRowOut(
        number=row.number, prompt=row.prompt, answers=[_answer_out(one) for one in row.answers]
    )


def _answer_out(answer: GradedAnswer) -> TriedAnswerOut:
    grade = answer.grade
    return TriedAnswerOut(
        text=answer.text,
        is_cut_off=answer.is_cut_off,
        score=grade.reward,
        parts={name: part.reward for name, part in grade.parts.items()},
        errors=grade.errors,
        messages=list(grade.messages),
        seconds=grade.seconds,
    )
