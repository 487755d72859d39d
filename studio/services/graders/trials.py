"""Try a grader: on the expected answers of rows, on a text, or on answers of a model."""

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from sqlmodel import Session, col, select

from studio.db.states import TaskStatus
from studio.db.tables import DatasetVersion
from studio.db.tasks import Task
from studio.errors import InvalidError, NotFoundError
from studio.graders.grading import Grading
from studio.graders.group_scores import Verdict, judge_scores
from studio.graders.items import GradedRow
from studio.graders.model_questions import AskModel
from studio.graders.python_process import PythonPolicy
from studio.graders.schema import Grader
from studio.intake.row_formats.tasks import ITEM_KINDS, to_graded_row
from studio.protocols import grader_judges
from studio.protocols.grader_trials import (
    GivenAnswer,
    JudgeSource,
    TrialJob,
    TrialResult,
    grade_rows,
    list_answers,
)
from studio.protocols.inference_service import GenerationRequest
from studio.protocols.tokenizer_service import PromptTokens, TemplateSource
from studio.services.datasets import datasets, versions
from studio.services.datasets.versions import RowQuery
from studio.services.evaluations import answer_sets
from studio.services.graders import builder, columns, judges
from studio.services.openai import model_names
from studio.services.tasks import tasks
from studio.settings import Settings

KIND = "try-grader"

Source = Literal["expected", "text", "model"]
"""Whose answers are graded."""

DEFAULT_ROWS, MAX_ROWS = 8, 64
DEFAULT_ANSWERS, MAX_ANSWERS = 8, 16
DEFAULT_NEW_TOKENS, MAX_NEW_TOKENS = 256, 2048
_FULL = 1.0
_RECENT = 30
"""How many trials are looked at for answers."""
_SPARE_ROWS = 4
"""How many times as many rows are read: some have no prompt that can be answered."""


Answers = Mapping[int, Sequence[GivenAnswer]]
"""By the number of the row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRequest:
    """Which answers to grade."""

    dataset: str
    """The name of a dataset."""
    rows: int = DEFAULT_ROWS
    source: Source = "expected"
    text: str = ""
    """The answer to each row, with the source `text`."""
    model: str = ""
    """The model that answers, with the source `model`: a name as in `/v1/models`."""
    answers: int = DEFAULT_ANSWERS
    """How many answers it gives to each row."""
    max_new_tokens: int = DEFAULT_NEW_TOKENS
    chat_template: TemplateSource = "model"


def first_rows(db: Session, settings: Settings, name: str) -> list[GradedRow]:
    """Return the first rows of a dataset, to see their columns; none if it has no prompts."""
    version = versions.require(db, name)
    if version.kind not in ITEM_KINDS:
        return []
    try:
        page = versions.load_rows(settings.datasets, version, limit=DEFAULT_ROWS)
    except OSError:
        return []
    return [row for one in page.rows if (row := to_graded_row(one.row, one.number))]


def load_rows(db: Session, settings: Settings, name: str, count: int) -> list[GradedRow]:
    """Return rows of a dataset, chosen evenly at random, always the same.

    Raises:
        InvalidError: there is no such dataset, or its rows have no prompt to answer.
        NotFoundError: its files are gone.

    """
    if not name:
        raise InvalidError(
            "Choose a dataset.", hint="Add one on the Datasets page.", param="dataset"
        )
    version = versions.require(db, name)
    if version.kind not in ITEM_KINDS:
        raise InvalidError(
            f"The rows of {name} have no prompt to answer: they are {version.kind}.",
            hint="Choose a dataset of tasks, conversations or preferences.",
            param="dataset",
        )
    found = _read_rows(settings, version, count)
    if not found:
        raise InvalidError(
            f"No row of {name} has a prompt that ends with the user's turn.",
            hint="Choose another dataset.",
            param="dataset",
        )
    return found


def _read_rows(settings: Settings, version: DatasetVersion, count: int) -> list[GradedRow]:
    total = version.train_rows
    chosen = random.Random(0).sample(range(1, total + 1), min(count * _SPARE_ROWS, total))  # noqa: S311 -- no secret
    query = RowQuery(numbers=frozenset(chosen))
    try:
        page = versions.load_rows(settings.datasets, version, query, limit=len(chosen))
    except OSError as error:
        raise NotFoundError(
            "The files of this dataset are gone.", hint="Import it again.", param="dataset"
        ) from error
    rows = {
        row.number: graded for row in page.rows if (graded := to_graded_row(row.row, row.number))
    }
    usable = [rows[number] for number in chosen if number in rows][:count]
    return sorted(usable, key=lambda row: row.number)


def list_datasets(db: Session) -> Sequence[str]:
    """Return the names of the datasets that graders can be tried on, newest first."""
    return datasets.list_with_rows(db, ITEM_KINDS)


def given_answers(grader: Grader, rows: Sequence[GradedRow], request: TrialRequest) -> Answers:
    """Return the answers that no model has to write."""
    if request.source == "text":
        return {row.number: [GivenAnswer(text=request.text)] for row in rows}
    return expected_answers(grader, rows)


def expected_answers(grader: Grader, rows: Sequence[GradedRow]) -> Answers:
    """Return the expected answer to each row: the column that the grader compares with."""
    column = builder.find_column(grader, columns.list_columns(rows))
    return {
        row.number: [GivenAnswer(text=columns.to_text(row.item, column))]
        for row in rows
        if column in row.item
    }


def grade(
    grader: Grader,
    rows: Sequence[GradedRow],
    answers: Answers,
    policy: PythonPolicy,
    ask: AskModel,
) -> TrialResult:
    """Grade answers, which are given by the row's number."""
    with (
        grader_judges.asking_ahead(grader, list_answers(rows, answers), ask) as ahead,
        Grading(grader, policy, ask_model=ahead) as grading,
    ):
        tried = list(grade_rows(grading, rows, answers))
        return TrialResult(rows=tried, seals=grading.seals)


def plan(db: Session, settings: Settings, grader: Grader, request: TrialRequest) -> TrialJob:
    """Return the job that lets a model answer, and grades its answers.

    Raises:
        InvalidError: the rows cannot be answered, or a model writes no answers.
        NotFoundError: the dataset or a model does not exist.

    """
    rows = load_rows(db, settings, request.dataset, request.rows)
    served = model_names.resolve_served_model(db, settings.runs, request.model)
    blank = GenerationRequest(model="", ids=[], stops=[])
    asks_endpoint = any(
        grader_judges.asks_endpoint(one.model)
        for _path, one in grader_judges.list_model_graders(grader)
    )
    job = TrialJob(
        about=f"{request.model} on {request.dataset}",
        dataset=request.dataset,
        answered_by="",
        model=served.fill_in(blank, request.model, PromptTokens(ids=[], stops=[])),
        chat_template=request.chat_template,
        rows=rows,
        answers=request.answers,
        max_new_tokens=request.max_new_tokens,
        grader=grader,
        source=JudgeSource(kind="endpoints" if asks_endpoint else "studio"),
        judges=judges.local_judges(db, settings, grader),
    )
    decisive = job.model_dump(
        mode="json", exclude={"about", "dataset", "grader", "source", "judges"}
    )
    identity = answer_sets.checksum(decisive | {"files": answer_sets.identify(served)})
    return job.model_copy(update={"answered_by": identity})


def describe(job: TrialJob) -> TrialRequest:
    """Return the request of a job."""
    return TrialRequest(
        dataset=job.dataset,
        rows=len(job.rows),
        source="model",
        model=job.model.name,
        answers=job.answers,
        max_new_tokens=job.max_new_tokens,
        chat_template=job.chat_template,
    )


def start(db: Session, job: TrialJob) -> Task:
    """Queue the task of a job, or return the one under way."""
    params = job.model_dump(mode="json")
    return tasks.enqueue(db, KIND, tasks.hashed_subject("grader", json.dumps(params)), params)


def find_answers(db: Session, job: TrialJob) -> Answers | None:
    """Return the answers that an earlier trial has for a job: they need not be written again."""
    recent = (
        select(Task)
        .where(Task.kind == KIND, Task.status == TaskStatus.SUCCEEDED)
        .order_by(col(Task.id).desc())
        .limit(_RECENT)
    )
    for task in db.exec(recent):
        if task.params["answered_by"] == job.answered_by:
            rows = TrialResult.model_validate(task.result).rows
            return {row.number: row.answers for row in rows}
    return None


def get(db: Session, task_id: int) -> Task:
    """Return the task of a trial.

    Raises:
        NotFoundError: there is none.

    """
    task = db.get(Task, task_id)
    if task is None or task.kind != KIND:
        raise NotFoundError(
            f"There is no trial {task_id}.", hint="Trials are deleted a week after they end."
        )
    return task


def judge_result(source: Source, result: TrialResult) -> Verdict:
    """Return what the grades of a trial mean."""
    if source == "model":
        return judge_scores(result.summary)
    summary = result.summary
    total = summary.count + summary.errors
    if summary.count == 0:
        return Verdict("refused", "No answer could be scored. The reasons are below.")
    if summary.errors:
        return Verdict("doubtful", f"{summary.errors:,} of {total:,} answers could not be scored.")
    if source == "text":
        return Verdict("good", "All answers could be scored.")
    scores = [answer.grade.reward for row in result.rows for answer in row.answers]
    return _judge_expected([score or 0.0 for score in scores])


def _judge_expected(scores: Sequence[float]) -> Verdict:
    missed = sum(score != _FULL for score in scores)
    if not missed:
        return Verdict("good", "All expected answers get the full score.")
    if not any(scores):
        return Verdict(
            "refused",
            "No expected answer gets a reward. Compare with another column, or be less strict.",
        )
    return Verdict(
        "doubtful",
        f"{missed:,} of {len(scores):,} expected answers do not get the full score. If they are "
        "right, be less strict.",
    )


def find_result(task: Task) -> TrialResult | None:
    """Return what a trial has found; None unless it has succeeded."""
    if task.status is not TaskStatus.SUCCEEDED:
        return None
    return TrialResult.model_validate(task.result)
