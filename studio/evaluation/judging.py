"""A judge says which of two answers is better: what its choices mean, and how sure that is.

Each pair is judged twice, in both orders, because judges favour a place. One side wins if both
orders agree, else it is a tie: Zheng et al., Judging LLM-as-a-Judge (2023), section 3.4.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from studio.evaluation.statistics import MAX_CHANCE, Figure, mcnemar

Choice = Literal["A", "B", "tie", ""]
"""What a judge chose of two answers; empty if its reply could not be read."""
PairVerdict = Literal["base", "tuned", "tie", "unreadable"]

MAX_FLIPPED = 0.3
"""A judge that changes its mind more often when the order changes is not reliable."""

MIN_PEOPLE = 20
"""Fewer pairs that people have judged say little about how far a judge agrees with them."""


def combine(base_first: Choice, tuned_first: Choice) -> PairVerdict:
    """Return the verdict on a pair from both orders: with the base model's answer first, and last.

    If one reply cannot be read, there is no verdict.
    """
    if not base_first or not tuned_first:
        return "unreadable"
    if (base_first, tuned_first) == ("A", "B"):
        return "base"
    return "tuned" if (base_first, tuned_first) == ("B", "A") else "tie"


def is_flipped(base_first: Choice, tuned_first: Choice) -> bool:
    """Whether a judge chose the same place in both orders, and so contradicted itself."""
    return bool(base_first) and base_first == tuned_first != "tie"


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedPair:
    """What a judge said of the answers to one row."""

    position: int
    base_first: Choice
    """Its choice with the base model's answer as A."""
    tuned_first: Choice
    """Its choice with the tuned model's answer as A."""
    is_asked: bool = True
    """Whether it was asked: equal answers are a tie without it."""

    @property
    def verdict(self) -> PairVerdict:
        return combine(self.base_first, self.tuned_first)


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeResult:
    """What a judge found over all pairs."""

    wins: int
    """Pairs in which the tuned model's answer is better."""
    losses: int
    ties: int
    unreadable: int
    """Pairs without a verdict; they do not count."""
    win_rate: Figure | None
    """Wins and half of the ties, as a share of the pairs that count; None if none do."""
    flipped_share: float
    """The share of pairs that it was asked about in which it chose the same place both times."""
    is_success: bool | None
    """Whether the tuned model is clearly better or clearly worse; None if that is not clear."""
    sentence: str

    @property
    def is_reliable(self) -> bool:
        return self.flipped_share <= MAX_FLIPPED


def summarise(pairs: Sequence[JudgedPair]) -> JudgeResult:
    """Return what a judge found over all pairs."""
    counts = Counter(pair.verdict for pair in pairs)
    read = [pair for pair in pairs if pair.verdict != "unreadable"]
    asked = [is_flipped(pair.base_first, pair.tuned_first) for pair in read if pair.is_asked]
    share = sum(asked) / len(asked) if asked else 0.0
    rate = _win_rate([pair.verdict for pair in read])
    success = _success(rate, counts["tuned"], counts["base"])
    return JudgeResult(
        wins=counts["tuned"],
        losses=counts["base"],
        ties=counts["tie"],
        unreadable=counts["unreadable"],
        win_rate=rate,
        flipped_share=share,
        is_success=success if share <= MAX_FLIPPED else None,
        sentence=_sentence(rate, success=success, flipped=share),
    )


def _win_rate(verdicts: Sequence[PairVerdict]) -> Figure | None:
    """Return the share of wins with its 95 % interval by resampling rows."""
    if not verdicts:
        return None
    import numpy as np  # noqa: PLC0415 -- heavy import

    from studio.evaluation import resampling  # noqa: PLC0415 -- heavy import

    points = {"tuned": 1.0, "tie": 0.5, "base": 0.0}
    table = np.array([(points[verdict], 1.0) for verdict in verdicts])
    value, n = float(table[:, 0].mean()), len(verdicts)
    sums = resampling.resampled_sums(table)
    low, high = resampling.interval(value, n, sums, lambda one: one[0] / one[1])
    return Figure(value, max(0.0, low), min(1.0, high), n)


def _success(rate: Figure | None, wins: int, losses: int) -> bool | None:
    """Return whether wins and losses differ by more than chance."""
    if rate is None or rate.low <= 1 / 2 <= rate.high or mcnemar(losses, wins) >= MAX_CHANCE:
        return None
    return rate.value > 1 / 2


def _sentence(rate: Figure | None, *, success: bool | None, flipped: float) -> str:
    if rate is None:
        return "No reply of the judge could be read, so there is no verdict."
    if flipped > MAX_FLIPPED:
        return (
            f"The judge is not reliable: in {_percent(flipped)} of the pairs it chose the same "
            "place when the answers changed places."
        )
    value, low, high = map(_percent, (rate.value, rate.low, rate.high))
    if success is None:
        return (
            "The judge cannot tell this run's model from the base model: it wins "
            f"{value} of {rate.n:,} pairs ({low} to {high})."
        )
    if success:
        return (
            f"The judge prefers this run's model: it wins {value} of {rate.n:,} pairs "
            f"({low} to {high})."
        )
    return (
        "The judge prefers the base model: this run's model wins "
        f"{value} of {rate.n:,} pairs ({low} to {high})."
    )


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """How far a judge agrees with people on pairs that both have judged."""

    n: int
    share: float
    """The share of pairs with equal verdicts."""
    kappa: float | None
    """Cohen's κ: agreement beyond chance, 1 at most; None if both always say the same."""

    @property
    def is_enough(self) -> bool:
        """Whether there are enough pairs to go by it."""
        return self.n >= MIN_PEOPLE


def agree(judge: Mapping[int, PairVerdict], people: Mapping[int, PairVerdict]) -> Agreement | None:
    """Compare the verdicts of a judge and of people, by position; None if they share no pair.

    κ = (p - q) / (1 - q) with p the share of equal verdicts and q that of equal ones by chance:
    Cohen, A Coefficient of Agreement for Nominal Scales (1960).
    """
    shared = [
        (judge[position], people[position])
        for position in judge
        if position in people and judge[position] != "unreadable"
    ]
    if not shared:
        return None
    n = len(shared)
    share = sum(one == other for one, other in shared) / n
    sides = [Counter(pair[side] for pair in shared) for side in (0, 1)]
    chance = sum(sides[0][verdict] * sides[1][verdict] for verdict in sides[0]) / n**2
    kappa = None if chance == 1 else (share - chance) / (1 - chance)
    return Agreement(n=n, share=share, kappa=kappa)
