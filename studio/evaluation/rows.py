"""A row of a dataset with a model's answer to it."""

from dataclasses import dataclass
from typing import Literal

AnswerKind = Literal["text", "label", "number", "score", "steps", "entities"]
"""What answers are: text that a model wrote; or, of a text that it read, its labels, its numbers,
the better one of two answers, which steps are right, its entities. Of several, each is a line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnsweredRow:
    """What a model answered to the prompt of one row, and how well it predicts the reference."""

    position: int
    """The place of the row in its dataset; two models' answers are paired by it."""
    prompt: str
    reference: str
    """The expected answer; empty if the row has none."""
    answer: str
    reason: Literal["stop", "length"]
    """Why the answer ended; `length` if it was cut off."""
    tokens: int
    """Generated tokens."""
    nll: float | None = None
    """Negative log-likelihood of the reference in nats, summed over its tokens."""
    nll_tokens: int = 0
    """Tokens of the reference that `nll` sums over; 1 for a label or a preference."""
    rejected_nll: float | None = None
    """The same of the worse answer of a preference."""
    kind: AnswerKind = "text"
    confidence: float | None = None
    """The probability that the model gives its answer; None if it gives none."""

    @property
    def lines(self) -> list[str]:
        """The parts of the answer."""
        return self.answer.splitlines()

    @property
    def reference_lines(self) -> list[str]:
        """The parts of the reference."""
        return self.reference.splitlines()

    @property
    def has_reference(self) -> bool:
        """Whether there is an expected answer: a text may have no labels, and no entities."""
        return self.kind != "text" or bool(self.reference.strip())
