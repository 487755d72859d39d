"""An evaluation: which model answers which rows, and what it made of each."""

from dataclasses import fields
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from studio.evaluation.rows import AnsweredRow, AnswerKind
from studio.protocols.inference_service import GenerationRequest
from studio.protocols.tokenizer_service import TemplateSource

RESULTS_FILE = "rows.jsonl"
"""The file in the task's folder to which results are appended, one row a line."""


class EvaluationJob(BaseModel):
    """One model and the rows that it answers."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    about: str
    """What is evaluated, for display."""
    answer_set: int
    """The id of the answer set that gets the results."""
    answers: AnswerKind = "text"
    method: str = ""
    """How the model reads a text, if it writes none."""
    model: GenerationRequest | None
    """How to load the model; it has no prompt. None if a rule answers, see `rules.py`."""
    train: Path
    validation: Path | None
    """Rows as JSON lines; None if a share of `train` is held out."""
    is_whole: bool = False
    """Whether to ask rows of the whole dataset, rather than those that the run held out."""
    validation_share: float
    seed: int
    with_bad: bool
    """Whether answers that are rated bad were among the rows when a share was held out."""
    rows: int
    """The number of rows; if there are more, they are chosen evenly at random, always the same."""
    chat_template: TemplateSource
    has_chat_template: bool
    has_expected: bool
    """Whether an answer can be compared with the one in its row."""
    max_length: int
    max_new_tokens: int
    trained_on: Path | None = None
    """The data that the model was trained on; None does not look for the rows in it."""
    has_own_validation: bool = False
    """Whether the model was trained on all of that data; if not, a share was held out."""


class RowResult(BaseModel):
    """What a model made of one row."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")

    position: int
    """Its position among the rows asked, from 0."""
    number: int
    """Its number in its part of the dataset, from 1."""
    prompt: str
    reference: str
    answer: str
    reason: Literal["stop", "length"]
    """`length` if the answer was cut off."""
    tokens: int
    """The number of tokens written."""
    nll: float | None
    """The loss of the reference in nats, summed over `nll_tokens`; None if nothing of it is left
    after truncation."""
    nll_tokens: int
    rejected_nll: float | None = None
    """The same of the worse answer of a preference."""
    computed_in: str
    """As in `events.Sampled`."""
    kind: AnswerKind = "text"
    confidence: float | None = None
    """The probability that the model gives its answer; None if it gives none."""
    overlap: Literal["", "exact", "ngram"] = ""
    """How the row occurs in the data that the model was trained on, if it does."""

    def to_row(self) -> AnsweredRow:
        """Return the result as metrics read it."""
        return AnsweredRow(
            **{field.name: getattr(self, field.name) for field in fields(AnsweredRow)}
        )
