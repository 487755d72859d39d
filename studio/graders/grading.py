"""Score answers with a grader of any type."""

import math
import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Self

from studio.errors import InvalidError, StudioError
from studio.graders.formulas import Formula
from studio.graders.grades import Grade, GradeError, GraderErrors, clip
from studio.graders.model_questions import (
    AskModel,
    ModelReply,
    build_question,
    read_score,
    score_range,
)
from studio.graders.python_process import PythonLimits, PythonPolicy, PythonProcess
from studio.graders.schema import (
    Grader,
    LabelModelGrader,
    MultiGrader,
    PythonGrader,
    ScoreModelGrader,
    SingleGrader,
    StringCheckGrader,
    TextSimilarityGrader,
    single_graders,
)
from studio.graders.templates import Sample, fill
from studio.graders.text_similarity import compare


class Grading:
    """A grader at work. Close it to end the processes of its Python graders.

    An answer that cannot be scored has no score, never 0: the grade says what went wrong. Scores
    are clipped to 0 and 1, those of a `score_model` to its range, and the grade says so.
    """

    def __init__(
        self,
        grader: Grader,
        python: PythonPolicy,
        *,
        ask_model: AskModel | None = None,
        limits: PythonLimits | None = None,
    ) -> None:
        """Prepare a grader. Without `ask_model`, graders that ask models give no score."""
        self.grader = grader
        self.ask_model = ask_model
        self._formula = (
            Formula(grader.calculate_output, grader.graders)
            if isinstance(grader, MultiGrader)
            else None
        )
        self._processes = {
            one.source: PythonProcess(one.source, python, limits=limits)
            for _, one in single_graders(grader)
            if isinstance(one, PythonGrader)
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for process in self._processes.values():
            process.close()

    def load_programs(self) -> None:
        """Load the programs of Python graders, which otherwise happens with the first answer.

        Raises:
            InvalidError: one cannot be loaded, or may not run here.

        """
        for path, one in single_graders(self.grader):
            if isinstance(one, PythonGrader):
                try:
                    self._processes[one.source].start()
                except GradeError as error:
                    param = f"{path}.source"
                    raise InvalidError(f"{param}: {error.message}", param=param) from error

    @property
    def seals(self) -> list[str]:
        """How the processes that have run are sealed."""
        return sorted({one.status.text for one in self._processes.values() if one.status})

    def grade(self, sample: Sample, item: object) -> Grade:
        """Score an answer to a row. Bad rows and graders give a grade with errors."""
        if isinstance(self.grader, MultiGrader):
            return self._grade_multi(self.grader, sample, item)
        return self._grade_single(self.grader, sample, item)

    def _grade_multi(self, grader: MultiGrader, sample: Sample, item: object) -> Grade:
        start = time.perf_counter()
        parts = {
            name: self._grade_single(part, sample, item) for name, part in grader.graders.items()
        }
        grade = Grade(
            name=grader.name,
            type=grader.type,
            reward=None,
            errors=GraderErrors.merge(part.errors for part in parts.values()),
            messages=tuple(_name_messages(parts.items())),
            parts=parts,
        )
        scores = {name: part.reward for name, part in parts.items() if part.reward is not None}
        if len(scores) == len(parts):
            grade = self._apply_formula(grade, scores)
        return replace(grade, seconds=time.perf_counter() - start)

    def _apply_formula(self, grade: Grade, scores: dict[str, float]) -> Grade:
        assert self._formula  # noqa: S101 -- a multi grader has one
        try:
            score = self._formula.compute(scores)
        except ValueError as error:
            return _failed(grade, GradeError("formula_parse_error", str(error)))
        return _scored(grade, score, 0.0, 1.0)

    def _grade_single(self, grader: SingleGrader, sample: Sample, item: object) -> Grade:
        start = time.perf_counter()
        grade = Grade(name=grader.name, type=grader.type, reward=None)
        low, high = score_range(grader) if isinstance(grader, ScoreModelGrader) else (0.0, 1.0)
        try:
            if isinstance(grader, ScoreModelGrader | LabelModelGrader):
                reply = self._ask(grader, sample, item)
                grade = replace(grade, model=reply.model, tokens=reply.tokens)
                score = read_score(grader, reply.text)
            else:
                score = self._score(grader, sample, item)
        except GradeError as error:
            grade = _failed(grade, error)
        else:
            grade = _scored(grade, score, low, high)
        return replace(grade, seconds=time.perf_counter() - start)

    def _score(
        self,
        grader: StringCheckGrader | TextSimilarityGrader | PythonGrader,
        sample: Sample,
        item: object,
    ) -> float:
        if isinstance(grader, PythonGrader):
            return self._processes[grader.source].grade(sample.to_namespace(), item)
        text = fill(grader.input, sample, item)
        reference = fill(grader.reference, sample, item)
        if isinstance(grader, StringCheckGrader):
            return float(check_strings(text, reference, grader.operation))
        return compare(grader.evaluation_metric, text, reference)

    def _ask(
        self, grader: ScoreModelGrader | LabelModelGrader, sample: Sample, item: object
    ) -> ModelReply:
        question = build_question(grader, sample, item)
        if self.ask_model is None:
            raise GradeError("model_grader_server_error", "No model can be asked here.")
        try:
            return self.ask_model(question)
        except StudioError as error:
            message = f"{error.message} {error.hint}".strip()
            raise GradeError("model_grader_server_error", message) from error


def check_strings(text: str, reference: str, operation: str) -> bool:
    """Return whether a comparison holds: the operations of OpenAI's `string_check`."""
    match operation:
        case "eq":
            return text == reference
        case "ne":
            return text != reference
        case "like":
            return reference in text
        case "ilike":
            return reference.casefold() in text.casefold()
    raise AssertionError(operation)  # The schema allows nothing else.


def _scored(grade: Grade, score: float, low: float, high: float) -> Grade:
    if not math.isfinite(score):
        return _failed(grade, GradeError("other_error", "The score is no finite number."))
    reward, message = clip(score, low, high)
    if not message:
        return replace(grade, reward=reward)
    return replace(grade, reward=reward, unclipped=score, messages=(*grade.messages, message))


def _failed(grade: Grade, error: GradeError) -> Grade:
    return replace(
        grade,
        errors=GraderErrors.merge([grade.errors, GraderErrors.from_error(error)]),
        messages=(*grade.messages, error.message),
    )


def _name_messages(parts: Iterable[tuple[str, Grade]]) -> Iterable[str]:
    for name, part in parts:
        yield from (f"{name}: {message}" for message in part.messages)
