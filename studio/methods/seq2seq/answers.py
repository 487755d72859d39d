"""How similar answers are to those of the data."""

from collections import Counter
from collections.abc import Sequence

MAX_ORDER = 6
"""The longest groups of characters that chrF compares."""
BETA = 2
"""How much more it counts what is missing than what is added."""


def chrf(answer: str, expected: str) -> float:
    """Return the chrF score of an answer, from 0 to 1.

    Popović, "chrF: character n-gram F-score for automatic MT evaluation", WMT 2015: the F score of
    the mean precision and recall over groups of 1 to 6 characters, spaces left out.
    """
    written, wanted = "".join(answer.split()), "".join(expected.split())
    if not written or not wanted:
        return float(written == wanted)
    shares = [_shares(written, wanted, order) for order in range(1, MAX_ORDER + 1)]
    counted = [share for share in shares if share is not None]
    precision = sum(share[0] for share in counted) / len(counted)
    recall = sum(share[1] for share in counted) / len(counted)
    if not precision + recall:
        return 0.0
    return (1 + BETA**2) * precision * recall / (BETA**2 * precision + recall)


def _shares(written: str, wanted: str, order: int) -> tuple[float, float] | None:
    """Return precision and recall of the groups of so many characters; None if a text has none."""
    ours, theirs = _groups(written, order), _groups(wanted, order)
    if not ours or not theirs:
        return None
    shared = (ours & theirs).total()
    return shared / ours.total(), shared / theirs.total()


def _groups(text: str, order: int) -> Counter[str]:
    return Counter(text[start : start + order] for start in range(len(text) - order + 1))


def judge(answers: Sequence[str], expected: Sequence[str]) -> dict[str, float]:
    """Return the mean chrF of answers, and the share that equals what was expected."""
    pairs = [(ours.strip(), theirs.strip()) for ours, theirs in zip(answers, expected, strict=True)]
    return {
        "eval_chrf_share": sum(chrf(*pair) for pair in pairs) / len(pairs),
        "eval_exact_share": sum(ours == theirs for ours, theirs in pairs) / len(pairs),
    }
