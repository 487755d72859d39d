"""Grade the answers to a prompt."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from studio.graders.grades import Grade
from studio.graders.grading import Grading
from studio.graders.templates import Sample
from studio.protocols import grader_judges
from studio.protocols.grader_judges import AskTogether
from studio.protocols.rollouts import MAX_ANSWER_CHARS, AnswerRecord, GroupRecord, Stage
from studio.training.data.tasks import Task
from studio.training.rollouts.generation import WrittenAnswer


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A prompt of the data."""

    ids: list[int]
    task: Task
    row: int
    """The row's number in its part of the dataset, counted from one."""

    @property
    def text(self) -> str:
        """What is asked: the last turn."""
        return str(self.task.messages[-1]["content"])


@dataclass(frozen=True, slots=True)
class GradedAnswer:
    """An answer, and what the grader says of it."""

    written: WrittenAnswer
    text: str
    grade: Grade

    @property
    def length(self) -> int:
        """Number of tokens."""
        return len(self.written.ids)

    @property
    def reward(self) -> float | None:
        """None if it could not be scored: then nothing is learned from it."""
        return self.grade.reward

    def to_record(self) -> AnswerRecord:
        return AnswerRecord(
            text=self.text[:MAX_ANSWER_CHARS],
            reward=self.reward,
            parts={name: part.reward for name, part in self.grade.parts.items()},
            messages=list(self.grade.messages),
            tokens=self.length,
            is_cut_off=self.written.is_cut_off,
        )


@dataclass(frozen=True, slots=True)
class GradedGroup:
    """All answers to one prompt."""

    prompt: Prompt
    answers: list[GradedAnswer]

    @property
    def rewards(self) -> list[float]:
        """The scores of answers that have one."""
        return [answer.reward for answer in self.answers if answer.reward is not None]

    @property
    def first_message(self) -> str:
        """What the grader said of the first answer that it could not score; empty if it could."""
        unscored = (answer for answer in self.answers if answer.reward is None)
        return next((message for answer in unscored for message in answer.grade.messages), "")

    def to_record(self, step: int, stage: Stage) -> GroupRecord:
        return GroupRecord(
            step=step,
            stage=stage,
            row=self.prompt.row,
            prompt=self.prompt.text,
            answers=[answer.to_record() for answer in self.answers],
        )


def grade_answers(
    grading: Grading,
    answers: Sequence[tuple[str, Task]],
    ask_together: AskTogether | None = None,
) -> list[Grade]:
    """Grade answers to tasks, in their order.

    Models behind addresses are asked a few at a time, and reward models by `ask_together`.
    """
    pairs = [(Sample(text), task.item) for text, task in answers]
    with _asked_ahead(grading, pairs, ask_together):
        return [grading.grade(sample, item) for sample, item in pairs]


@contextmanager
def _asked_ahead(
    grading: Grading,
    pairs: Sequence[tuple[Sample, object]],
    ask_together: AskTogether | None,
) -> Iterator[None]:
    ask = grading.ask_model
    if ask is None:
        yield
        return
    with grader_judges.asking_ahead(grading.grader, pairs, ask, ask_together) as ahead:
        grading.ask_model = ahead
        try:
            yield
        finally:
            grading.ask_model = ask
