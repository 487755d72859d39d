"""What the scores of several answers a row say before training: whether there is anything to learn.

Reinforcement learning compares the answers to one row with each other. A row whose answers all have
the same score changes nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isclose
from statistics import fmean, stdev
from typing import Literal

MIN_MEAN = 0.01
"""Below it, answers that earn something are so rare that most steps see none."""
MAX_ERRORS = 0.5
"""The largest share of answers without a score that training can do with."""
MAX_WITHOUT_SPREAD = 0.9
"""The largest share of rows without spread that leaves a step something to learn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSummary:
    """Scores of groups of answers; each group answers one row."""

    mean: float | None
    """Of all scores; None without any."""
    spread: float | None
    """The mean over groups of their standard deviation; None if no group has two scores."""
    share_without_spread: float | None
    """The share of groups with two scores or more that are all the same; None without any."""
    errors: int
    """Answers without a score."""
    count: int
    """Answers with a score."""
    lowest: float | None = None
    highest: float | None = None

    @property
    def share_of_errors(self) -> float:
        total = self.errors + self.count
        return self.errors / total if total else 0.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether training can learn from scores, and why."""

    kind: Literal["refused", "doubtful", "good"]
    text: str


def summarise(groups: Sequence[Sequence[float | None]]) -> GroupSummary:
    """Return figures of groups of scores. None is an answer that could not be scored: left out."""
    scored = [[score for score in group if score is not None] for group in groups]
    scores = [score for group in scored for score in group]
    deviations = [stdev(group) for group in scored if len(group) > 1]
    return GroupSummary(
        mean=fmean(scores) if scores else None,
        spread=fmean(deviations) if deviations else None,
        share_without_spread=(
            fmean(isclose(deviation, 0.0, abs_tol=1e-8) for deviation in deviations)
            if deviations
            else None
        ),
        errors=sum(len(group) for group in groups) - len(scores),
        count=len(scores),
        lowest=min(scores, default=None),
        highest=max(scores, default=None),
    )


def refusal(summary: GroupSummary) -> str:
    """Return why training cannot learn from these scores, in a sentence; empty if it can."""
    if summary.share_of_errors > MAX_ERRORS:
        total = summary.errors + summary.count
        return (
            f"Only {summary.count:,} of {total:,} answers could be scored, which is too few. "
            "Correct the grader first."
        )
    if summary.mean is None or summary.highest is None or summary.lowest != summary.highest:
        return ""
    if summary.highest == 0:
        return (
            "Nothing to learn: the model never gets a reward. Use easier rows, a grader that "
            "rewards part of the way, or a model that solves some of them."
        )
    if summary.highest == 1:
        return (
            "Nothing to learn: the model solves all rows already. Use harder rows or a stricter "
            "grader."
        )
    return (
        f"Nothing to learn: every answer has the same score, {summary.highest:g}. Use a grader "
        "that tells answers apart."
    )


def judge_scores(summary: GroupSummary) -> Verdict:
    """Return whether training can learn from these scores, and what to watch."""
    if text := refusal(summary):
        return Verdict("refused", text)
    if summary.mean is None or summary.share_without_spread is None:
        return Verdict(
            "doubtful", "Grade at least two answers to a row to see whether there is spread."
        )
    return Verdict("doubtful", text) if (text := _doubt(summary)) else Verdict("good", _GOOD)


_GOOD = "There is something to learn: answers to the same row differ in score."


def _doubt(summary: GroupSummary) -> str:
    mean, without_spread = summary.mean or 0.0, summary.share_without_spread or 0.0
    if without_spread == 1:
        return (
            "Answers to the same row never differ in score here, so nothing would be learned from "
            "them. Grade more answers a row, or use a grader that tells them apart."
        )
    if mean < MIN_MEAN:
        return (
            f"The mean score is below {MIN_MEAN:g}: this will hardly be learned. Use easier rows, "
            "or a grader that rewards part of the way."
        )
    if without_spread > MAX_WITHOUT_SPREAD:
        return (
            "Few rows have answers that differ in score: training will be slow. Grade more "
            "answers a row, or use a grader with finer scores."
        )
    if summary.errors:
        return "Some answers could not be scored. They are left out of training; see why below."
    return ""
