"""Graders as data in OpenAI's grader JSON, checked when they are read.

The studio adds no type of its own. What OpenAI has no grader for (a regular expression, a length, a
number, JSON) is a `python` grader whose program the studio writes: see `studio.graders.presets`.
"""

import keyword
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from annotated_types import Ge, Le, Len
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from studio.errors import InvalidError
from studio.graders.formulas import FUNCTION_NAMES, Formula
from studio.graders.templates import check_template
from studio.graders.text_similarity import METRICS, REFUSED_METRICS
from studio.schemas.field_docs import FieldDocs
from studio.schemas.validation_errors import field_errors

MAX_SOURCE = 256 * 2**10
"""Characters of a program, as in OpenAI's API."""
MAX_GRADERS = 32
"""Graders of a `multi`."""

Template = Annotated[str, Len(0, 200_000), AfterValidator(check_template)]
"""A text with places such as `{{ item.answer }}` and `{{ sample.output_text }}`."""
Name = Annotated[str, Len(1, 200)]


class _Grader(FieldDocs, BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Name


class StringCheckGrader(_Grader):
    """1 if a comparison of two texts holds, else 0."""

    type: Literal["string_check"]
    input: Template
    reference: Template
    operation: Literal["eq", "ne", "like", "ilike"]
    """Whether the input equals the reference, does not, or contains it; `ilike` ignores case."""


def _check_metric(metric: object) -> object:
    if isinstance(metric, str) and metric in REFUSED_METRICS:
        raise ValueError(f"{REFUSED_METRICS[metric]}, so use one of {', '.join(METRICS)}.")
    return metric


class TextSimilarityGrader(_Grader):
    """How similar two texts are, from 0 to 1."""

    type: Literal["text_similarity"]
    input: Template
    reference: Template
    evaluation_metric: Annotated[
        Literal[
            "fuzzy_match",
            "bleu",
            "gleu",
            "rouge_1",
            "rouge_2",
            "rouge_3",
            "rouge_4",
            "rouge_5",
            "rouge_l",
        ],
        BeforeValidator(_check_metric),
    ]


class TextBlock(FieldDocs, BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    type: Literal["input_text", "output_text"]
    text: Template


def _check_content(content: object) -> object:
    blocks = content if isinstance(content, list) else [content]
    for block in blocks:
        kind = block.get("type") if isinstance(block, Mapping) else None
        if kind in {"input_image", "input_audio"}:
            raise ValueError(f"Models that judge read texts here, and no {kind}.")
    return content


class GraderMessage(FieldDocs, BaseModel):
    """A turn of what a model that judges is asked."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    role: Literal["user", "assistant", "system", "developer"]
    content: Annotated[
        Template | TextBlock | Annotated[list[Template | TextBlock], Len(1, 100)],
        BeforeValidator(_check_content),
    ]
    type: Literal["message"] | None = None

    @property
    def template(self) -> str:
        """The texts of all blocks."""
        blocks = self.content if isinstance(self.content, list) else [self.content]
        return "".join(block if isinstance(block, str) else block.text for block in blocks)


class SamplingParams(FieldDocs, BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    max_completions_tokens: Annotated[int, Ge(1), Le(2**20)] | None = None
    temperature: Annotated[float, Ge(0), Le(2)] | None = None
    top_p: Annotated[float, Ge(0), Le(1)] | None = None
    seed: Annotated[int, Ge(-(2**63)), Le(2**63 - 1)] | None = None
    reasoning_effort: Literal["none"] | None = None
    """Models of the studio have no such setting."""


class _ModelGrader(_Grader):
    model: Annotated[str, Len(1, 1000)]
    """A name as in `/v1/models`."""
    input: Annotated[list[GraderMessage], Len(1, 100)]


class ScoreModelGrader(_ModelGrader):
    """A number that a model gives."""

    type: Literal["score_model"]
    range: Annotated[list[Annotated[float, Field(allow_inf_nan=False)]], Len(2, 2)] | None = None
    """The lowest and the highest score; 0 and 1 by default."""
    sampling_params: SamplingParams | None = None

    @field_validator("range")
    @classmethod
    def _check_range(cls, limits: list[float] | None) -> list[float] | None:
        if limits and not limits[0] < limits[1]:
            raise ValueError("The first number of a range must be less than the second.")
        return limits


class LabelModelGrader(_ModelGrader):
    """1 if a model gives a passing label, else 0."""

    type: Literal["label_model"]
    labels: Annotated[list[Annotated[str, Len(1, 200)]], Len(1, 100)]
    passing_labels: Annotated[list[str], Len(1, 100)]

    @field_validator("passing_labels")
    @classmethod
    def _check_passing(cls, passing: list[str], info: ValidationInfo) -> list[str]:
        labels = info.data.get("labels")
        unknown = [label for label in passing if labels is not None and label not in labels]
        if unknown:
            raise ValueError(f"{unknown[0]} is none of the labels.")
        return passing


class PythonGrader(_Grader):
    """What a program returns: `def grade(sample, item) -> float`."""

    type: Literal["python"]
    source: Annotated[str, Len(1, MAX_SOURCE)]
    image_tag: str | None = None
    """Accepted and ignored: there is one environment, Python's standard library."""


SingleGrader = Annotated[
    StringCheckGrader | TextSimilarityGrader | ScoreModelGrader | LabelModelGrader | PythonGrader,
    Field(discriminator="type"),
]


def _check_grader_name(name: str) -> str:
    if not (name.isascii() and name.isidentifier()) or keyword.iskeyword(name):
        raise ValueError(f"{name[:40]} cannot stand in a formula: use letters, digits and _.")
    if name in FUNCTION_NAMES:
        raise ValueError(f"{name} is a function of formulas: choose another name.")
    return name


def _by_name(graders: object) -> object:
    """Return graders by name; a single one, as OpenAI's client types it, has its own name."""
    if isinstance(graders, Mapping) and isinstance(graders.get("type"), str):
        return {graders.get("name"): graders}
    return graders


def _refuse_nesting(grader: object) -> object:
    if isinstance(grader, Mapping) and grader.get("type") == "multi":
        raise ValueError("A multi grader cannot hold another one.")
    return grader


class MultiGrader(_Grader):
    """A formula on the scores of other graders."""

    type: Literal["multi"]
    graders: Annotated[
        dict[
            Annotated[str, AfterValidator(_check_grader_name)],
            Annotated[SingleGrader, BeforeValidator(_refuse_nesting)],
        ],
        Len(1, MAX_GRADERS),
        BeforeValidator(_by_name),
    ]
    calculate_output: str
    """Numbers, names of the graders, `+ - * / ^`, min, max, abs, floor, ceil, exp, sqrt, log."""

    @field_validator("calculate_output")
    @classmethod
    def _check_formula(cls, formula: str, info: ValidationInfo) -> str:
        graders = info.data.get("graders")
        if graders is not None:
            Formula(formula, graders)
        return formula


Grader = Annotated[
    StringCheckGrader
    | TextSimilarityGrader
    | ScoreModelGrader
    | LabelModelGrader
    | PythonGrader
    | MultiGrader,
    Field(discriminator="type"),
]

_ADAPTER: TypeAdapter[Any] = TypeAdapter(Grader)


def parse_grader(data: object, param: str = "grader") -> "Grader":
    """Return a grader from OpenAI's JSON.

    Raises:
        InvalidError: it is none; the message names the path and says what it must be.

    """
    try:
        grader: Grader = _ADAPTER.validate_python(data)
    except ValidationError as error:
        first = field_errors(error.errors(), Grader)[0]
        path = ".".join(filter(None, (param, first.param)))
        raise InvalidError(f"{path}: {first.message}", param=path) from error
    return grader


def single_graders(grader: "Grader", param: str = "grader") -> Iterator[tuple[str, SingleGrader]]:
    """Yield the graders that score by themselves, each with its path."""
    if not isinstance(grader, MultiGrader):
        yield param, grader
        return
    for name, part in grader.graders.items():
        yield f"{param}.graders.{name}", part
