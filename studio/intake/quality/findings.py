"""A finding: a possible problem in the rows of a dataset."""

from dataclasses import dataclass, field

from studio.intake.rows.pipeline import Part

MAX_LISTED_ROWS = 10_000
"""Rows listed; the count covers all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A possible problem to review before training; one per code and part."""

    code: str
    message: str
    count: int
    rows: list[int]
    """The first affected rows, counted from 1 within their part."""
    part: Part = "train"
    blocking: bool = False
    """Whether training is impossible until it is fixed."""
    twins: list[int] = field(default_factory=list)
    """For repeated rows, the row that each repeats; for an overlap, a row of the training part."""
