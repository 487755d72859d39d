"""A benchmark: what lm-eval asks which model, and how each row was scored."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from studio.protocols.inference_service import GenerationRequest
from studio.protocols.tokenizer_service import TemplateSource


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class SuiteSource(_Message):
    """A public suite, whose rows lm-eval downloads from the hub."""

    kind: Literal["hub"] = "hub"
    suite: str
    rows: int
    """How many rows to ask: the first ones of the suite."""


class RowsSource(_Message):
    """The rows of a dataset."""

    kind: Literal["rows"] = "rows"
    file: Path
    rows: int
    """How many rows to ask; if there are more, they are chosen at random, always the same."""
    max_new_tokens: int


class BenchmarkJob(_Message):
    about: str
    """What is measured, for display."""
    score_set: int
    """The id of the score set that gets the results."""
    model: GenerationRequest
    """How to load the model; it has no prompt."""
    chat_template: TemplateSource
    source: Annotated[SuiteSource | RowsSource, Field(discriminator="kind")]


class MetricScores(_Message):
    """A metric of one model."""

    stderr: float | None
    """lm-eval's standard error of the value; None if it gives none."""
    rows: Mapping[str, tuple[float, ...]]
    """What each row contributes, by lm-eval's task and number."""


class BenchmarkResult(_Message):
    scores: Mapping[str, MetricScores]
    """By the key of the metric; the first decides."""
    signature: str
    """How exactly it was measured: only values with equal signatures compare."""
    computed_in: str
    """The number format of the weights."""
