"""Rows with answers, for tests of scores."""

from collections.abc import Iterable
from typing import Literal

from studio.evaluation.rows import AnsweredRow


def answered(  # noqa: PLR0913 -- a builder
    answer: str = "",
    reference: str = "",
    *,
    position: int = 0,
    prompt: str = "Q?",
    reason: Literal["stop", "length"] = "stop",
    nll: float | None = None,
    nll_tokens: int = 0,
) -> AnsweredRow:
    """Return a row with an answer of as many tokens as it has words."""
    return AnsweredRow(
        position=position,
        prompt=prompt,
        reference=reference,
        answer=answer,
        reason=reason,
        tokens=len(answer.split()),
        nll=nll,
        nll_tokens=nll_tokens,
    )


def answered_pairs(pairs: Iterable[tuple[str, str]]) -> list[AnsweredRow]:
    """Return a row per answer and reference, in order."""
    return [
        answered(answer, reference, position=position)
        for position, (answer, reference) in enumerate(pairs)
    ]


def right_at(positions: Iterable[int], n: int) -> list[AnsweredRow]:
    """Return n rows of which the answers at these positions are exact."""
    right = set(positions)
    return answered_pairs(("yes" if at in right else "no", "yes") for at in range(n))
