"""What a finished run achieved, in plain words: right answers before and after, and its curve.

Nothing is claimed without a measurement: what was not measured has no verdict.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from sqlmodel import Session, col, select

from studio.db.tables import Metric, Run, Sample
from studio.evaluation import answer_rules
from studio.methods import METHODS
from studio.metrics import MetricSpec, format_value, is_share
from studio.services.compare import compare
from studio.services.samples import sample_diff
from studio.services.samples.sample_diff import AnswerScore

Shape = Literal[
    "falling",
    "level",
    "overfitting",
    "unchanged",
    "chance",
    "worse",
    "broken",
    "single",
    "none",
]
Point = tuple[int, float | None]
"""A step, and the validation value there: None if it was NaN or infinite."""

LEARNED_SHARE, SOME_SHARE = 2 / 3, 1 / 3
"""From these shares of right answers on, a run has learned its task, or some of it."""

CHANGE = 0.05
"""Relative changes of the validation loss below this are no verdict."""

RISE = 0.02
"""How far above its best value a curve must end to count as overfitting."""

STILL_FALLING = 0.02
"""The relative gain of the last validation from which on longer training should help."""

TELLING_ROWS = 6
"""A share that changed by fewer validation rows may have changed by chance: by a sign test, five
rows that all went one way have a probability of 6 %, six of 3 %."""

SHOWN_PAIRS = 3
_ROUNDING = 1e-5


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationTrend:
    """The course of a run's validation metric."""

    shape: Shape
    sentence: str
    first: float | None = None
    last: float | None = None
    ends: tuple[str, str] = ("", "")
    """The first and the last value, as they are written."""
    best: float | None = None
    best_step: int = 0
    last_step: int = 0
    gain: float = 0.0
    """Improvement from the first value to the last, in parts of the first, and in parts of 1 for a
    share and a metric that starts at 0; negative if it got worse."""
    rows: int = 0
    """How many validation rows it was measured on; 0 if unknown."""
    is_guessing: bool = False
    """Whether it ended no better than guessing."""
    shows_memorising: bool = True
    """Whether it would get worse again if the model memorised its training rows."""

    @property
    def is_worse(self) -> bool:
        """Whether it ended worse than it began, however good it was in between."""
        return self.shape == "broken" or (self.shape != "chance" and self.gain <= -CHANGE)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerPair:
    """An answer before and after training."""

    prompt: str
    expected: str
    before: str
    after: str
    was_right: bool | None
    is_right: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunVerdict:
    """What a run achieved."""

    sentence: str
    is_success: bool | None
    """None if nothing can be claimed."""
    before: AnswerScore
    after: AnswerScore
    pairs: list[AnswerPair]
    metric: str
    """The validation metric of the run's method."""
    trend: ValidationTrend
    spoilt: int = 0
    """How many answers became empty or repeat themselves."""


def load_verdict(db: Session, run: Run) -> RunVerdict:
    """Judge a finished run by its answers and its validation metric."""
    run_id = run.id or 0
    spec = METHODS[run.recipe.method].objective
    rows = int(run.resolved.get("validation_rows", 0))
    trend = describe_trend(_load_points(db, run_id, spec), spec, rows)
    pairs = pair_answers(compare.list_samples(db, [run_id]))
    before = sample_diff.count_correct(pair.was_right for pair in pairs)
    after = sample_diff.count_correct(pair.is_right for pair in pairs)
    spoilt = sum(
        answer_rules.is_degenerate(pair.after) and not answer_rules.is_degenerate(pair.before)
        for pair in pairs
    )
    sentence, is_success = judge(before, after, trend, spoilt=spoilt, answers=len(pairs))
    if not math.isfinite(run.metrics.get("loss", 0.0)):
        sentence, is_success = "Training broke down: its loss became NaN or infinite.", False
    return RunVerdict(
        sentence=sentence,
        is_success=is_success,
        before=before,
        after=after,
        pairs=most_telling(pairs),
        metric=spec.key,
        trend=trend,
        spoilt=spoilt,
    )


def judge(
    before: AnswerScore,
    after: AnswerScore,
    trend: ValidationTrend,
    *,
    spoilt: int = 0,
    answers: int = 0,
) -> tuple[str, bool | None]:
    """Return the verdict, and whether it is a success.

    Answers count as right only if they equal the expected text. If none does, before or after, the
    validation metric says more. It is no success if it cost `spoilt` of the answers: a model may
    prefer the better answer and no longer write one.
    """
    if not after.judged or before.judged != after.judged:
        if spoilt and trend.gain >= CHANGE:
            first, last = trend.ends
            sentence = (
                f"Validation went from {first} to {last}, but {spoilt} of {answers} answers became "
                "empty or repeat themselves"
            )
            return sentence, False
        return _judge_trend(trend)
    if not (before.right or after.right):
        if trend.is_worse:
            return _judge_trend(trend)
        if trend.gain >= CHANGE and trend.first is not None and trend.last is not None:
            first, last = trend.ends
            sentence = (
                f"Validation went from {first} to {last}, but no answer of {after.judged} is right "
                "yet"
            )
            return sentence, None
    return _judge_answers(before, after)


def _judge_trend(trend: ValidationTrend) -> tuple[str, bool | None]:
    unclear: dict[str, tuple[str, bool | None]] = {
        "broken": ("Training broke down: validation became NaN or infinite.", False),
        "none": ("Training is complete. Nothing was validated, so there is no verdict.", None),
        "single": ("Training is complete. One validation is too little for a verdict.", None),
    }
    if trend.shape in unclear:
        return unclear[trend.shape]
    first, last = trend.ends
    if trend.shape == "chance":
        sentence = (
            f"Validation went from {first} to {last}, which may be chance with so few validation "
            f"rows: {trend.rows}"
        )
        return sentence, None
    if abs(trend.gain) < CHANGE:
        return f"It hardly changed: validation went from {first} to {last}", False
    if trend.is_worse:
        return f"It got worse: validation went from {first} to {last}", False
    if trend.is_guessing:
        return f"It is no better than guessing yet: validation went from {first} to {last}", False
    return f"It learned: validation went from {first} to {last}", True


def _judge_answers(before: AnswerScore, after: AnswerScore) -> tuple[str, bool]:
    count = after.judged
    if after.right < before.right:
        return f"It got worse: {before.right} of {count} → {after.right} of {count} right", False
    if before.right == count:
        return f"It knew it already: {before.right} of {count} right before and after", True
    if after.right > before.right and after.right >= LEARNED_SHARE * count:
        return f"It learned it: {before.right} of {count} → {after.right} of {count} right", True
    if after.right > before.right and after.right >= SOME_SHARE * count:
        return f"It learned some of it: {before.right} of {count} → {after.right} right", True
    return (
        f"It did not learn it yet: {before.right} of {count} → {after.right} of {count} right",
        False,
    )


def describe_trend(points: Sequence[Point], spec: MetricSpec, rows: int = 0) -> ValidationTrend:
    """Describe a curve measured on validation rows, whose points are in order of their steps."""
    if not points:
        return ValidationTrend(shape="none", sentence="Nothing was measured on validation rows.")
    finite = [(step, value) for step, value in points if value is not None]
    last_step = points[-1][0]
    if points[-1][1] is None or not finite:
        broken = next(step for step, value in points if value is None)
        sentence = f"It became NaN or infinite at step {broken}."
        return ValidationTrend(shape="broken", sentence=sentence, last_step=last_step)
    first, last = finite[0][1], finite[-1][1]
    if len(finite) == 1:
        value = write_value(last, spec)
        sentence = f"It was measured once, {value}: too little to see a direction."
        return ValidationTrend(shape="single", sentence=sentence, first=first, last=last)
    sign = -1 if spec.better == "higher" else 1
    best_step, best = min(finite, key=lambda point: sign * point[1])
    least = 1.0 if spec.starts_at_zero or is_share(spec.key) else 0.0
    grain = TELLING_ROWS / rows if rows and is_share(spec.key) else 0.0
    values = [sign * value for _step, value in finite]
    shape = _shape(values, least, grain, may_memorise=spec.shows_memorising)
    gain = _relative(sign * first, sign * last, least)
    ends = write_value(first, spec), write_value(last, spec)
    best_text = write_value(best, spec)
    is_worse = shape != "chance" and gain <= -CHANGE
    return ValidationTrend(
        shape=shape,
        sentence=_trend_sentence(shape, ends, (best_text, best_step), is_worse=is_worse),
        first=first,
        last=last,
        ends=ends,
        best=best,
        best_step=best_step,
        last_step=last_step,
        gain=gain,
        rows=rows,
        is_guessing=spec.guess is not None and last <= spec.guess,
        shows_memorising=spec.shows_memorising,
    )


def write_value(value: float, spec: MetricSpec) -> str:
    """Write a value of a metric: a rounding error around 0 as 0."""
    is_rounding = spec.starts_at_zero and abs(value) < _ROUNDING
    return "0" if is_rounding else format_value(value, spec.key)


def _shape(values: Sequence[float], least: float, grain: float, *, may_memorise: bool) -> Shape:
    """Classify a curve that is better the lower it is; differences below `grain` say nothing."""
    first, last, best = values[0], values[-1], min(values)
    gain = _relative(first, last, least)
    if may_memorise and best < first and _relative(last, best, least) > max(RISE, grain):
        return "overfitting"
    if CHANGE <= abs(gain) < grain:
        return "chance"
    if gain <= -CHANGE:
        return "worse"
    if gain < CHANGE:
        return "unchanged"
    return "falling" if _relative(values[-2], last, least) >= max(STILL_FALLING, grain) else "level"


def _trend_sentence(
    shape: Shape, ends: tuple[str, str], best: tuple[str, int], *, is_worse: bool
) -> str:
    first, last = ends
    value, step = best
    if shape == "overfitting" and is_worse:
        # It may have diverged; only a curve that stays below its start shows memorised rows.
        return f"Best at step {step} with {value}, then worse than at first: {last}."
    return {
        "falling": f"From {first} to {last}, and still improving at the end.",
        "level": f"From {first} to {last}, then level: more steps would change little.",
        "overfitting": f"Best at step {step} with {value}, then worse: {last} at the end. "
        "From there on it memorised its training rows.",
        "chance": f"From {first} to {last}: on so few rows, this may be chance.",
        "unchanged": f"From {first} to {last}: almost no change.",
        "worse": f"From {first} to {last}: worse than before training.",
    }[shape]


def _relative(start: float, end: float, least: float) -> float:
    """Return how much lower a value ends, relative to where it began, or at least to `least`."""
    scale = max(abs(start), least)
    return (start - end) / scale if scale else 0.0


def pair_answers(samples: Sequence[Sample]) -> list[AnswerPair]:
    """Return the first and last answer to each prompt that was answered before and after."""
    stages: dict[int, dict[str, Sample]] = {}
    for sample in samples:
        stages.setdefault(sample.position, {})[sample.stage] = sample
    return [_pair(stages[at]) for at in sorted(stages) if {"before", "after"} <= set(stages[at])]


def _pair(stages: Mapping[str, Sample]) -> AnswerPair:
    before, after = stages["before"], stages["after"]
    return AnswerPair(
        prompt=after.prompt,
        expected=after.reference,
        before=before.answer,
        after=after.answer,
        was_right=answer_rules.is_correct(before.answer, after.reference),
        is_right=answer_rules.is_correct(after.answer, after.reference),
    )


def most_telling(pairs: Sequence[AnswerPair]) -> list[AnswerPair]:
    """Choose a few pairs: those that became right, and one that is still wrong if there is one."""
    ranked = sorted(pairs, key=_rank)
    chosen = ranked[:SHOWN_PAIRS]
    wrong = [pair for pair in ranked if pair.is_right is False]
    if wrong and all(pair.is_right for pair in chosen):
        chosen[-1] = wrong[0]
    return chosen


def _rank(pair: AnswerPair) -> tuple[int, int]:
    """Order pairs by what they show, then short ones first."""
    if pair.is_right and not pair.was_right:
        kind = 0
    elif pair.was_right and not pair.is_right:
        kind = 1
    else:
        kind = 2 if pair.before.split() != pair.after.split() else 3
    return kind, len(pair.prompt) + len(pair.after)


def _load_points(db: Session, run_id: int, spec: MetricSpec) -> list[Point]:
    query = select(Metric.step, Metric.value).where(
        col(Metric.run_id) == run_id, col(Metric.key) == spec.key
    )
    return list(db.exec(query.order_by(col(Metric.step), col(Metric.id))).all())
