"""A trial of a grader: which answers are graded, and what the grader says of each."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from studio.graders.grades import Grade
from studio.graders.grading import Grading
from studio.graders.group_scores import GroupSummary, summarise
from studio.graders.items import GradedRow
from studio.graders.schema import Grader
from studio.graders.templates import Sample
from studio.protocols.grader_judges import LocalJudge
from studio.protocols.inference_service import GenerationRequest
from studio.protocols.tokenizer_service import TemplateSource

ANSWERS_FILE = "answers.jsonl"
"""The file in the task's folder to which answers are appended, one row a line."""


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


class GivenAnswer(_Message):
    """An answer to grade."""

    text: str
    is_cut_off: bool = False
    """Whether it reached its maximum length."""
    tokens: int | None = None
    """How many tokens the model wrote; None if no model wrote it."""


class GradedAnswer(GivenAnswer):
    grade: Grade


class TriedRow(_Message):
    number: int
    """Its number in its part of the dataset, from 1."""
    messages: Sequence[Mapping[str, Any]]
    item: Mapping[str, Any]
    answers: list[GradedAnswer]

    @property
    def prompt(self) -> str:
        """The last turn of the prompt."""
        return str(self.messages[-1]["content"])


class TrialResult(_Message):
    rows: list[TriedRow]
    seals: list[str]
    """How the processes of Python graders were sealed."""

    @property
    def seconds(self) -> float | None:
        """The mean time of grading an answer; None without answers."""
        times = [one.grade.seconds for row in self.rows for one in row.answers]
        return fmean(times) if times else None

    @property
    def summary(self) -> GroupSummary:
        return summarise([[one.grade.reward for one in row.answers] for row in self.rows])


class JudgeSource(_Message):
    """Where the models are that a grader asks."""

    kind: Literal["studio", "endpoints"]
    """With `endpoints`, the task's process gets their keys."""


class TrialJob(_Message):
    """A model that answers rows, and the grader of its answers."""

    about: str
    """What is tried, for display."""
    dataset: str
    answered_by: str
    """What is equal for equal answers: of the model, the rows, and how they are answered."""
    model: GenerationRequest
    """How to load the model; it has no prompt."""
    chat_template: TemplateSource = "model"
    rows: list[GradedRow]
    answers: int
    """How many answers each row gets."""
    max_new_tokens: int
    temperature: float = 1.0
    grader: Grader
    source: JudgeSource
    judges: dict[str, LocalJudge] = Field(default_factory=dict)
    """The models of the studio that the grader asks, by their names in it."""


def grade_rows(
    grading: Grading, rows: Iterable[GradedRow], answers: Mapping[int, Sequence[GivenAnswer]]
) -> Iterator[TriedRow]:
    """Yield rows with the grades of their answers, which are given by the row's number."""
    for row in rows:
        yield TriedRow(
            number=row.number,
            messages=row.messages,
            item=row.item,
            answers=[
                GradedAnswer(
                    text=answer.text,
                    is_cut_off=answer.is_cut_off,
                    tokens=answer.tokens,
                    grade=grading.grade(Sample(answer.text), row.item),
                )
                for answer in answers.get(row.number, ())
            ],
        )


def list_answers(
    rows: Iterable[GradedRow], answers: Mapping[int, Sequence[GivenAnswer]]
) -> Iterator[tuple[Sample, object]]:
    """Yield each answer with the item that it is graded by."""
    for row in rows:
        for answer in answers.get(row.number, ()):
            yield Sample(answer.text), row.item
