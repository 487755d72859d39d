"""What a grader says of an answer: a score, or why there is none."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Self, get_args

from pydantic import BaseModel, ConfigDict

from studio.schemas.field_docs import FieldDocs

ErrorFlag = Literal[
    "formula_parse_error",
    "sample_parse_error",
    "truncated_observation_error",
    "unresponsive_reward_error",
    "invalid_variable_error",
    "other_error",
    "python_grader_server_error",
    "python_grader_runtime_error",
    "model_grader_server_error",
    "model_grader_refusal_error",
    "model_grader_parse_error",
]
"""OpenAI's names of what can go wrong. The studio has no use for `truncated_observation_error`,
`unresponsive_reward_error` and `model_grader_refusal_error`: they are always false."""


class GradeError(Exception):
    """An answer cannot be scored. It has no score then: 0 would blame the model."""

    def __init__(self, flag: ErrorFlag, message: str, *, kind: str = "") -> None:
        super().__init__(message)
        self.flag = flag
        self.message = message
        self.kind = kind
        """Of `python_grader_server_error`: what ended it, in a word."""


class GraderErrors(FieldDocs, BaseModel):
    """OpenAI's error flags."""

    model_config = ConfigDict(frozen=True, protected_namespaces=())

    formula_parse_error: bool = False
    """The formula cannot be computed."""
    sample_parse_error: bool = False
    """The answer is not the JSON that the grader reads."""
    truncated_observation_error: bool = False
    unresponsive_reward_error: bool = False
    invalid_variable_error: bool = False
    """A template names what the row or the answer does not have."""
    other_error: bool = False
    python_grader_server_error: bool = False
    """The program was stopped, or may not run here."""
    python_grader_server_error_type: str | None = None
    python_grader_runtime_error: bool = False
    """The program raised an error, or returned no finite number."""
    python_grader_runtime_error_details: str | None = None
    model_grader_server_error: bool = False
    """The model that judges could not be asked."""
    model_grader_refusal_error: bool = False
    model_grader_parse_error: bool = False
    """Its reply cannot be read."""
    model_grader_server_error_details: str | None = None

    @classmethod
    def from_error(cls, error: GradeError) -> Self:
        values: dict[str, object] = {error.flag: True}
        if error.flag == "python_grader_server_error":
            values["python_grader_server_error_type"] = error.kind
        if f"{error.flag}_details" in cls.model_fields:
            values[f"{error.flag}_details"] = error.message
        return cls.model_validate(values)

    @property
    def flags(self) -> list[ErrorFlag]:
        return [flag for flag in get_args(ErrorFlag) if getattr(self, flag)]

    @classmethod
    def merge(cls, all_errors: Iterable[Self]) -> Self:
        """Return the errors of several graders; of details, the first count."""
        merged: dict[str, object] = {}
        for errors in all_errors:
            for name, value in errors:
                merged[name] = merged.get(name) or value
        return cls.model_validate(merged)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grade:
    """What a grader says of one answer."""

    name: str
    type: str
    reward: float | None
    """The score within the grader's range; None if there was an error."""
    errors: GraderErrors = field(default_factory=GraderErrors)
    messages: tuple[str, ...] = ()
    """Sentences on what went wrong, and on scores that were clipped."""
    unclipped: float | None = None
    """The score before it was clipped; None if it was within the range."""
    seconds: float = 0.0
    parts: Mapping[str, "Grade"] = field(default_factory=dict)
    """Of `multi`: what each of its graders says."""
    model: str | None = None
    """The model that was asked."""
    tokens: int | None = None
    """How many tokens it read and wrote."""


def clip(score: float, low: float, high: float) -> tuple[float, str]:
    """Return a score within its range, and a sentence if it was outside."""
    clipped = min(max(score, low), high)
    if clipped == score:
        return score, ""
    return clipped, f"The score {score:g} is outside {low:g} to {high:g}: {clipped:g} is used."
