"""A row of a dataset as graders see it: the prompt that a model answers, and `item`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class GradedRow:
    """A prompt, and what its answers are graded by."""

    number: int
    """The row's number in its part of the dataset, from 1."""
    messages: Sequence[Mapping[str, Any]]
    """The prompt; the last turn is the user's."""
    item: Mapping[str, Any] = field(default_factory=dict)
    """The columns of the row, and the prompt as `messages`."""
