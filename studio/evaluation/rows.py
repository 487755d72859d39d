"""A row of a dataset with a model's answer to it."""

from dataclasses import dataclass
from typing import Literal


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
    """Tokens of the reference that `nll` sums over."""

    @property
    def has_reference(self) -> bool:
        """Whether there is an expected answer."""
        return bool(self.reference.strip())
