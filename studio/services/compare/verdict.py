"""The verdict on compared runs: a headline, its evidence, and what would settle it.

Runs that differ only in the seed are one side. Two sides differ beyond seed noise if a two-sided
t-test with pooled variance says so at 5 %; with one seed each, that is unknown. Speed and
memory are measured, and stated if they differ by more than the steps scatter.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from statistics import fmean, variance
from typing import Literal

from sqlmodel import Session, col, func, select

from studio.db.states import RunStatus
from studio.db.tables import DatasetVersion, Metric, Run, Sample
from studio.evaluation import answer_rules
from studio.methods import METHODS, METRICS, AnyRecipe, direction
from studio.metrics import format_value, is_share
from studio.services.compare import compare
from studio.services.compare.compare import Comparison
from studio.services.compare.run_labels import label_recipes
from studio.services.runs import runs
from studio.services.samples import sample_diff, sample_ratings

ENOUGH_SEEDS = 3
"""Seeds per recipe from which "no difference" is more than "we cannot tell"."""
NEW_SEEDS = 2
MAX_SIDES = 4
"""More recipes than this are not offered to be repeated at once."""
VISIBLE_SHARE = 0.02
"""Relative difference below which losses look equal."""
NOTABLE_SHARE = 0.05
"""Relative difference from which speed and memory are worth a sentence."""
MIN_STEPS = 5
"""Fewest logged steps to state a speed."""
MB, GB = 1e6, 1e9
SPEED, MEMORY = "tokens_per_second", "peak_memory_bytes"

T_LIMITS = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)
"""Two-sided 5 % limits of Student's t with 1, 2, … degrees of freedom."""
T_LIMIT_OF_MANY = 2.2

Tone = Literal["better", "same", "open"]
Difference = Literal["beyond", "within", "unknown"]


@dataclass(frozen=True, slots=True)
class Side:
    """The runs of one recipe."""

    label: str
    runs: Sequence[Run]
    values: Sequence[float]
    """The objective of each finished run of the recipe, also of those not compared here."""

    @property
    def mean(self) -> float:
        return fmean(self.values)

    @property
    def objective(self) -> str:
        return METHODS[self.runs[0].recipe.method].metrics.objective.key

    def shown(self, value: float, digits: int = 4) -> str:
        """Return a value of the objective as a text: a part of 1 as a percentage."""
        return format_value(value, self.objective, digits)

    def __str__(self) -> str:
        if not self.values:
            return f"{self.label} \N{EN DASH}"
        spread = (
            f" \N{PLUS-MINUS SIGN} {self.shown(math.sqrt(variance(self.values)), 2)}"
            if len(self.values) > 1
            else ""
        )
        return f"{self.label} {self.shown(self.mean)}{spread} (n = {len(self.values)})"


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedProposal:
    """More seeds of each recipe that has too few."""

    run_ids: tuple[int, ...]
    """One run of each of these recipes."""
    seconds: float | None
    """How long they will take, one after the other; None if no run says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    headline: Sequence[str]
    """One or two sentences."""
    evidence: Sequence[str]
    tone: Tone
    more_seeds: SeedProposal | None = None


def judge(db: Session, made: Comparison) -> Verdict:
    """Say what the compared runs show, and no more."""
    sides = _sides(made)
    answers = compare.list_samples(db, [run.id or 0 for run in made.runs])
    measured = [
        *_speed_evidence(db, sides),
        *_memory_evidence(sides),
        *_answer_evidence(sides, answers),
    ]
    if problem := _problem(db, made, sides):
        return Verdict(headline=[problem], evidence=measured, tone="open")
    if len(sides) == 1:
        return Verdict(
            headline=["These runs differ only in their seed."],
            evidence=[*_loss_line(sides), *measured],
            tone="same",
        )
    ranked = sorted(
        sides, key=lambda side: side.mean, reverse=direction(sides[0].objective) == "higher"
    )
    difference = compare_sides(ranked[0].values, ranked[-1].values)
    headline = [*_loss_headline(ranked, difference), *_speed_headline(db, sides)]
    return Verdict(
        headline=headline,
        evidence=[
            *_loss_line(sides),
            _noise_line(ranked, difference),
            *_amount_line(sides),
            *measured,
        ],
        tone="better" if difference == "beyond" else "same" if _is_settled(sides) else "open",
        more_seeds=None if difference == "beyond" else _propose_seeds(sides),
    )


def add_seeds(db: Session, run_ids: Sequence[int]) -> list[Run]:
    """Queue the recipes of these runs again, each with the same new seeds.

    Raises:
        InvalidError: There are no runs, too many, or one cannot run here.

    """
    chosen = compare.load_runs(db, run_ids)[:MAX_SIDES]
    used = {run.recipe.optimisation.seed for run in chosen}
    used |= {
        run.recipe.optimisation.seed
        for one in chosen
        for run in runs.list_for_experiment(db, one.experiment_id)
    }
    seeds = list(islice((seed for seed in range(1, 2**32) if seed not in used), NEW_SEEDS))
    # Naming the precision keeps it from being chosen again for the machine.
    return [
        runs.resubmit(
            db, run.id or 0, {"precision": run.recipe.precision, "optimisation": {"seed": seed}}
        )
        for seed in seeds
        for run in chosen
    ]


def compare_sides(first: Sequence[float], second: Sequence[float]) -> Difference:
    """Return whether two sets of values differ by more than their scatter explains."""
    freedom = len(first) + len(second) - 2
    if freedom < 1:
        return "unknown"
    return "beyond" if abs(fmean(first) - fmean(second)) > _limit(first, second) else "within"


def _limit(first: Sequence[float], second: Sequence[float]) -> float:
    """Return the largest difference of means that scatter explains."""
    freedom = len(first) + len(second) - 2
    squares = sum((len(one) - 1) * variance(one) for one in (first, second) if len(one) > 1)
    error = math.sqrt(squares / freedom * (1 / len(first) + 1 / len(second)))
    return error * (T_LIMITS[freedom - 1] if freedom <= len(T_LIMITS) else T_LIMIT_OF_MANY)


def _sides(made: Comparison) -> list[Side]:
    by_recipe: dict[tuple[tuple[str, str], ...], list[Run]] = {}
    for run in sorted(made.runs, key=lambda run: run is not made.base):
        by_recipe.setdefault(made.noise.recipes[run.id or 0], []).append(run)
    key = METHODS[made.base.recipe.method].metrics.objective.key
    labels = label_recipes([members[0] for members in by_recipe.values()])
    return [
        Side(label, members, _finite(made.noise.finals.get(recipe, ()), key))
        for label, (recipe, members) in zip(labels, by_recipe.items(), strict=True)
    ]


def _finite(finals: Sequence[Mapping[str, float]], key: str) -> list[float]:
    return [value for final in finals if math.isfinite(value := final.get(key, math.nan))]


def _problem(db: Session, made: Comparison, sides: Sequence[Side]) -> str:
    """Return why the runs cannot be judged; empty if they can."""
    for run in made.runs:
        label = made.labels[run.id or 0]
        if not run.status.is_final:
            return f"{label} has not finished yet, so there is no verdict."
        if run.status is not RunStatus.SUCCEEDED:
            return f"{label} did not finish, so there is no verdict."
        if _is_broken(run):
            return f"The loss of {label} became NaN or infinite."
    if len({run.recipe.method for run in made.runs}) > 1:
        return "Not comparable: the runs have different training methods."
    if reason := _unfair(db, made.runs):
        return f"{METRICS[sides[0].objective].title} cannot be compared: {reason}."
    missing = next((side.label for side in sides if not side.values), None)
    return f"{missing} has no validation result to compare." if missing else ""


def _is_broken(run: Run) -> bool:
    objective = METHODS[run.recipe.method].metrics.objective.key
    values = (run.metrics.get("loss"), run.metrics.get(objective))
    return any(value is not None and not math.isfinite(value) for value in values)


def _unfair(db: Session, compared: Sequence[Run]) -> str:
    """Return why the results of runs of one method cannot be compared; empty if they can."""
    recipes = [run.recipe for run in compared]
    if len({recipe.base_model for recipe in recipes}) > 1 and _has_unit(recipes[0]):
        return "the runs have different base models, which may split text differently"
    if len({run.dataset_version_id for run in compared}) > 1:
        return "the runs have different validation rows"
    if len({repr(recipe.data) for recipe in recipes}) > 1:
        return "the runs have different data settings, so their validation examples differ"
    return "the runs hold out different validation rows" if _splits_differ(db, compared) else ""


def _has_unit(recipe: AnyRecipe) -> bool:
    """Whether a recipe is judged in nats: a share of right answers means the same in any model."""
    metrics = METHODS[recipe.method].metrics
    return bool(metrics.unit(metrics.objective.key))


def _splits_differ(db: Session, compared: Sequence[Run]) -> bool:
    """Whether the sides share no seed, although the seed picks the rows held out."""
    version = db.get(DatasetVersion, compared[0].dataset_version_id or 0)
    if version is None or version.validation_rows:
        return False
    seeds: dict[str, set[int]] = {}
    for run in compared:
        recipe = run.recipe.model_dump()
        seed = recipe["optimisation"].pop("seed")
        seeds.setdefault(repr(recipe), set()).add(seed)
    return len(seeds) > 1 and not set.intersection(*seeds.values())


def _loss_headline(ranked: Sequence[Side], difference: Difference) -> list[str]:
    best, worst = ranked[0], ranked[-1]
    gap, size = abs(best.mean - worst.mean), max(abs(best.mean), abs(worst.mean))
    share = gap / size if size else 0.0
    if len(ranked) > 2 and (difference == "beyond" or share >= VISIBLE_SHARE):  # noqa: PLR2004 -- more than a pair
        first = f"{best.label} did best, {worst.label} worst."
        return [first, *_doubts(difference)]
    if difference == "beyond":
        return [f"{best.label} is better than {worst.label}, beyond seed noise."]
    if _is_settled(ranked):
        return ["No difference beyond seed noise."]
    if share < VISIBLE_SHARE:
        return ["No visible difference."]
    return [_lead(best, worst, share, difference)]


def _lead(best: Side, worst: Side, share: float, difference: Difference) -> str:
    """Say how far one side is ahead.

    Relative to a value that may be 0, that would say nothing; of a share, it would be misread.
    """
    is_absolute = is_share(best.objective) or METRICS[best.objective].starts_at_zero
    is_relative = min(best.mean, worst.mean) > 0 and not is_absolute
    first, second = best.shown(best.mean), worst.shown(worst.mean)
    if difference == "unknown" and is_relative:
        return f"{best.label} is ahead by {100 * share:.0f} %, with one seed each."
    if difference == "unknown":
        return f"{best.label} is ahead with {first} against {second}, with one seed each."
    if is_relative:
        return f"{best.label} is ahead by {100 * share:.0f} %, which seed noise could explain."
    return f"{best.label} is ahead with {first} against {second}, which seed noise could explain."


def _doubts(difference: Difference) -> list[str]:
    """Return what more than two sides, of which one is ahead, do not show."""
    if difference == "unknown":
        return ["With one seed each, noise is unknown."]
    return ["Seed noise could explain it."] if difference == "within" else []


def _is_settled(sides: Sequence[Side]) -> bool:
    return all(len(side.values) >= ENOUGH_SEEDS for side in sides)


def _loss_line(sides: Sequence[Side]) -> list[str]:
    title = METRICS[sides[0].objective].title
    return [f"{title}: {'; '.join(map(str, sides))}"] if any(side.values for side in sides) else []


def _noise_line(ranked: Sequence[Side], difference: Difference) -> str:
    if difference == "unknown":
        return "One seed each: how far seeds alone scatter is not known yet."
    largest = _limit(ranked[0].values, ranked[-1].values)
    if is_share(ranked[0].objective):
        limit = f"{100 * largest:.2g}"
        if limit == "1":
            return "Seeds alone explain a difference of up to 1 point (t-test, 95 %)."
        return f"Seeds alone explain a difference of up to {limit} points (t-test, 95 %)."
    limit = f"{largest:.2g}"
    return f"Seeds alone explain a difference of up to {limit} (t-test, 95 %)."


def _amount_line(sides: Sequence[Side]) -> list[str]:
    tokens = [side.runs[0].tokens for side in sides]
    if min(tokens) >= (1 - VISIBLE_SHARE) * max(tokens):
        return []
    amounts = "; ".join(
        f"{side.label} {amount:,}" for side, amount in zip(sides, tokens, strict=True)
    )
    return [f"Trained on different numbers of tokens: {amounts}"]


@dataclass(frozen=True, slots=True)
class _Speed:
    label: str
    mean: float
    spread: float
    steps: int


def _speeds(db: Session, sides: Sequence[Side]) -> list[_Speed]:
    """Return the speed of each side over all steps, fastest first."""
    query = select(
        col(Metric.run_id),
        func.count(),
        func.avg(Metric.value),
        func.avg(col(Metric.value) * col(Metric.value)),
    )
    ids = [run.id for side in sides for run in side.runs]
    chosen = query.where(
        col(Metric.run_id).in_(ids), Metric.key == SPEED, col(Metric.value).is_not(None)
    )
    rows = {
        run_id: (count, mean, square)
        for run_id, count, mean, square in db.exec(chosen.group_by(col(Metric.run_id)))
    }
    found = (_pool(side, [rows[run.id] for run in side.runs if run.id in rows]) for side in sides)
    return sorted((one for one in found if one), key=lambda one: -one.mean)


def _pool(side: Side, rows: Sequence[tuple[int, float, float]]) -> _Speed | None:
    steps = sum(count for count, _mean, _square in rows)
    if steps < MIN_STEPS:
        return None
    mean = sum(count * value for count, value, _square in rows) / steps
    square = sum(count * value for count, _mean, value in rows) / steps
    return _Speed(side.label, mean, math.sqrt(max(0.0, square - mean**2)), steps)


def _speed_headline(db: Session, sides: Sequence[Side]) -> list[str]:
    speeds = _speeds(db, sides)
    if len(speeds) < 2:  # noqa: PLR2004 -- a pair
        return []
    fast, slow = speeds[0], speeds[-1]
    gain = fast.mean / slow.mean - 1
    is_clear = fast.mean - slow.mean > math.hypot(fast.spread, slow.spread)
    return (
        [f"{fast.label} trained {100 * gain:.0f} % faster."]
        if is_clear and gain >= NOTABLE_SHARE
        else []
    )


def _speed_evidence(db: Session, sides: Sequence[Side]) -> list[str]:
    speeds = _speeds(db, sides)
    if not speeds:
        return []
    parts = (
        f"{one.label} {one.mean:,.0f} \N{PLUS-MINUS SIGN} {one.spread:,.0f} (n = {one.steps})"
        for one in speeds
    )
    return [f"Tokens per second over the logged steps: {'; '.join(parts)}"]


def _memory_evidence(sides: Sequence[Side]) -> list[str]:
    peaks = [
        (side.label, max((run.metrics.get(MEMORY, 0.0) for run in side.runs), default=0.0))
        for side in sides
    ]
    known = [peak for _label, peak in peaks if peak]
    if len(known) < len(peaks) or min(known) > (1 - NOTABLE_SHARE) * max(known):
        return []
    return [f"Peak memory: {'; '.join(f'{label} {_size(peak)}' for label, peak in peaks)}"]


def _size(count: float) -> str:
    return f"{count / GB:.3g} GB" if count >= GB else f"{count / MB:.3g} MB"


def _answer_evidence(sides: Sequence[Side], samples: Sequence[Sample]) -> list[str]:
    """Compare the first runs of two sides, or count the right answers of more."""
    by_run = [_final_answers(side.runs[0], samples) for side in sides]
    if not all(by_run):
        return []
    lines = []
    if len(sides) == 2:  # noqa: PLR2004 -- a pair
        shared = by_run[0].keys() & by_run[1].keys()
        same = sum(by_run[0][key].answer.split() == by_run[1][key].answer.split() for key in shared)
        lines += [f"Same answers to {same} of {len(shared)} prompts."] if shared else []
    scores = [
        sample_diff.count_correct(
            answer_rules.is_correct(one.answer, one.reference) for one in found.values()
        )
        for found in by_run
    ]
    if all(score.judged for score in scores):
        pairs = zip(sides, scores, strict=True)
        counts = "; ".join(f"{side.label} {score.right}/{score.judged}" for side, score in pairs)
        lines.append(f"Right answers: {counts}")
    return lines


def _final_answers(run: Run, samples: Sequence[Sample]) -> Mapping[tuple[str, str], Sample]:
    return {
        (sample.prompt, sample.reference): sample
        for sample in samples
        if sample.run_id == run.id and sample.stage == sample_ratings.FINAL_STAGE
    }


def _propose_seeds(sides: Sequence[Side]) -> SeedProposal | None:
    short = [side for side in sides if len(side.values) < ENOUGH_SEEDS]
    if not short or len(sides) > MAX_SIDES:
        return None
    durations = [_duration(side.runs[0]) for side in short]
    known = [seconds for seconds in durations if seconds]
    return SeedProposal(
        run_ids=tuple(side.runs[0].id or 0 for side in short),
        seconds=NEW_SEEDS * sum(known) * len(durations) / len(known) if known else None,
    )


def _duration(run: Run) -> float | None:
    if run.claimed_at and run.finished_at and run.attempt <= 1:
        return (run.finished_at - run.claimed_at).total_seconds()
    return run.metrics.get("train_seconds")
