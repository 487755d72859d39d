"""What models that judge are asked, and how their replies are read."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from studio.graders.grades import GradeError
from studio.graders.schema import LabelModelGrader, SamplingParams, ScoreModelGrader
from studio.graders.templates import Sample, fill

DEFAULT_TOKENS = 512
"""The longest reply, unless the grader sets one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelQuestion:
    """A question to a model that judges."""

    model: str
    messages: tuple[Mapping[str, str], ...]
    sampling: SamplingParams
    reply_schema: Mapping[str, Any]
    """The JSON schema of the reply."""
    has_range: bool = False
    """Whether the grader says which scores there are; if not, they are from 0 to 1."""

    @property
    def max_tokens(self) -> int:
        return self.sampling.max_completions_tokens or DEFAULT_TOKENS


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReply:
    text: str
    model: str
    tokens: int
    """How many tokens were read and written."""


AskModel = Callable[[ModelQuestion], ModelReply]
"""Asks a model. Raises StudioError if it cannot be asked."""


def build_question(
    grader: ScoreModelGrader | LabelModelGrader, sample: Sample, item: object
) -> ModelQuestion:
    """Return what a model is asked of an answer.

    Raises:
        GradeError: a template names what does not exist.

    """
    messages = tuple(
        {"role": message.role, "content": fill(message.template, sample, item)}
        for message in grader.input
    )
    sampling = grader.sampling_params if isinstance(grader, ScoreModelGrader) else None
    return ModelQuestion(
        model=grader.model,
        messages=messages,
        sampling=sampling or SamplingParams(temperature=0.0),
        reply_schema={
            "type": "object",
            "properties": {"result": _result_schema(grader)},
            "required": ["result"],
            "additionalProperties": False,
        },
        has_range=isinstance(grader, ScoreModelGrader) and grader.range is not None,
    )


def _result_schema(grader: ScoreModelGrader | LabelModelGrader) -> dict[str, Any]:
    if isinstance(grader, LabelModelGrader):
        return {"enum": grader.labels}
    low, high = score_range(grader)
    return {"type": "number", "minimum": low, "maximum": high}


def score_range(grader: ScoreModelGrader) -> tuple[float, float]:
    """Return the lowest and the highest score."""
    low, high = grader.range or (0.0, 1.0)
    return low, high


def read_score(grader: ScoreModelGrader | LabelModelGrader, text: str) -> float:
    """Return the score in a reply.

    Raises:
        GradeError: the reply is not the JSON that was asked for.

    """
    try:
        result = json.loads(_find_object(text))["result"]
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise _unreadable() from error
    if isinstance(grader, LabelModelGrader):
        if result not in grader.labels:
            raise _unreadable()
        return float(result in grader.passing_labels)
    if isinstance(result, bool) or not isinstance(result, int | float):
        raise _unreadable()
    try:
        return float(result)
    except OverflowError as error:
        raise _unreadable() from error


def _find_object(text: str) -> str:
    """Return the JSON object in a reply: models that are not held to JSON write around it."""
    return text[text.find("{") : text.rfind("}") + 1]


def _unreadable() -> GradeError:
    return GradeError(
        "model_grader_parse_error",
        "The model's reply is not the JSON that was asked for, such as {“result”: 1}.",
    )
