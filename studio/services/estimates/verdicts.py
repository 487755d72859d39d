"""Whether a run fits into memory, as far as estimates can tell."""

from typing import Literal

Verdict = Literal["fits", "tight", "too large"]
_VERDICT_ORDER: tuple[Verdict, ...] = ("fits", "tight", "too large")

TIGHT_SHARE = 0.85
"""The share of memory above which a run may fail: estimates err, and other processes need memory
too."""


def judge_fit(needed: int, available: int) -> Verdict:
    """Return whether this many bytes fit."""
    if needed > available:
        return "too large"
    return "tight" if needed > TIGHT_SHARE * available else "fits"


def worst_verdict(*verdicts: Verdict) -> Verdict:
    return max(verdicts, key=_VERDICT_ORDER.index)
