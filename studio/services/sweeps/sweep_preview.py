"""Preview a sweep before it starts: its runs, their duration, and settings that cannot run."""

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import islice, product
from typing import Any, Literal

from pydantic import ValidationError
from sqlmodel import Session

from studio.errors import InvalidError
from studio.evaluation.run_metrics import is_evaluated
from studio.methods import METHODS, AnyRecipe, direction
from studio.recipe import search_space
from studio.recipe.dotted_keys import flatten, merge, nest
from studio.recipe.fields import active_settings, variant_fields
from studio.services.datasets import versions
from studio.services.estimates import estimates, reference_runs, run_duration
from studio.services.precision import recommendation
from studio.services.runs import runs
from studio.services.workers import workers

Strategy = Literal["grid", "random", "tpe"]
Direction = Literal["minimise", "maximise"]
TrialSettings = dict[str, search_space.Scalar]
"""What one run tries: a value for each setting that varies, by dotted names."""

MAX_RUNS = 500
MAX_PARALLEL = 64
DEFAULT_RUNS = 20
"""Number of runs of a sweep that is not a grid, by default."""
SAMPLE_SIZE = 24
"""Number of sampled settings that represent those not known in advance."""
MAX_REDRAWS = 30
"""Most attempts to draw settings that are new and can run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPlan:
    """The search space of a sweep, and how to search it."""

    space: search_space.SearchSpace
    strategy: Strategy = "grid"
    count: int | None = None
    """Number of runs; a grid has one for each combination."""
    metric: str | None = None
    """By default the objective of the recipe's method."""
    direction: Direction | None = None
    """By default the metric's better direction."""
    seed: int = 0
    is_pruning: bool = False
    parallel: int = 1

    def goal(self, recipe: AnyRecipe) -> tuple[str, Direction]:
        """Return the metric to optimise in runs of a recipe, and the direction."""
        metric = self.metric or METHODS[recipe.method].objective.key
        is_gain = direction(metric) == "higher"
        return metric, self.direction or ("maximise" if is_gain else "minimise")


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedSettings:
    """Why some settings cannot run here."""

    message: str
    hint: str
    count: int
    example: str
    """One of them, formatted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPreview:
    space: search_space.SearchSpace
    """What varies, with values converted to the recipe's types."""
    count: int
    """Number of runs."""
    looked_at: int
    """Number of settings checked, including those that cannot run."""
    planned: Sequence[TrialSettings]
    """The settings to try, in order; empty if each depends on earlier results."""
    refused: Sequence[RefusedSettings]
    at_once: int = 1
    seconds: float | None = None
    """From the first start to the last end. None if no similar run was timed."""
    least_seconds: float | None = None
    most_seconds: float | None = None

    @property
    def left_out(self) -> int:
        return sum(refusal.count for refusal in self.refused)


def preview(db: Session, recipe: AnyRecipe, plan: SweepPlan) -> SweepPreview:
    """Check all settings that a sweep will try, or a sample if they depend on its runs.

    Raises:
        InvalidError: The plan is not valid, or none of its settings can run here.

    """
    _check_metric(plan, recipe)
    space = convert_space(recipe, plan.space)
    count = _count_runs(plan, space)
    target_count = SAMPLE_SIZE if plan.strategy == "tpe" else count
    drawn = _grid_points(space) if plan.strategy == "grid" else draw_settings(space, plan.seed)
    runnable: list[TrialSettings] = []
    recipes: list[AnyRecipe] = []
    reasons: dict[tuple[str, str], list[TrialSettings]] = {}
    limit = count if plan.strategy == "grid" else target_count * 4
    refusal = runs.make_checker(db)
    for settings in _distinct(recipe, islice(drawn, limit)):
        candidate = apply_settings(recipe, settings)
        if problem := refusal(candidate):
            reasons.setdefault((problem.message, problem.hint), []).append(settings)
        else:
            runnable.append(settings)
            recipes.append(recommendation.resolve_precision(db, candidate).recipe)
        if len(runnable) == target_count:
            break
    if not runnable:
        message, hint = next(iter(reasons))
        raise InvalidError(
            f"None of these settings can run here. {message}", hint=hint, param="space"
        )
    durations = _estimate_seconds(db, recipes, count if plan.strategy == "tpe" else len(runnable))
    at_once = max(1, min(plan.parallel, workers.count_slots(db)))
    return SweepPreview(
        space=space,
        count=count if plan.strategy == "tpe" else len(runnable),
        looked_at=len(runnable) + sum(map(len, reasons.values())),
        planned=[] if plan.strategy == "tpe" else runnable,
        refused=[_refused_settings(*reason, settings) for reason, settings in reasons.items()],
        at_once=at_once,
        **{name: value / at_once for name, value in durations.items()},
    )


def convert_space(
    recipe: AnyRecipe, space: Mapping[str, search_space.Distribution]
) -> search_space.SearchSpace:
    """Return the space with its values converted to the recipe's types.

    Raises:
        InvalidError: There is no such setting, or it cannot have such a value.

    """
    converted: search_space.SearchSpace = {}
    for name, distribution in space.items():
        switches = _required_switch(recipe, space, name)
        if isinstance(distribution, search_space.Values):
            values = [
                _convert_value(recipe, name, value, switches) for value in distribution.values
            ]
            converted[name] = search_space.Values(values=values)
            continue
        ends = [
            _convert_value(recipe, name, end, switches)
            for end in (distribution.low, distribution.high)
        ]
        fields = distribution.model_dump() | dict(zip(("low", "high"), ends, strict=True))
        try:
            ranged = search_space.Range.model_validate(fields)
        except ValidationError as error:
            message = "A range needs a numeric setting."
            raise InvalidError(message, hint="List the values instead.", param=name) from error
        if all(isinstance(end, int) for end in ends) and not ranged.is_whole:
            raise InvalidError("A whole-number setting needs a whole-number step.", param=name)
        converted[name] = ranged
    return converted


def apply_settings(recipe: AnyRecipe, settings: TrialSettings) -> AnyRecipe:
    return runs.with_overrides(recipe, nest(effective_settings(recipe, settings).items()))


def effective_settings(recipe: AnyRecipe, settings: TrialSettings) -> TrialSettings:
    """Return the settings that have an effect: without an adapter, a rank has none."""
    return active_settings(type(recipe), flatten(recipe.model_dump()), settings)


def draw_settings(space: search_space.SearchSpace, seed: int) -> Iterator[TrialSettings]:
    """Draw distinct random settings; the same seed gives the same ones."""
    rng = random.Random(seed)  # noqa: S311 -- no secret
    drawn: set[tuple[search_space.Scalar, ...]] = set()
    while len(drawn) < search_space.count_combinations(space):
        for _ in range(MAX_REDRAWS * 10):
            settings = {name: distribution.sample(rng) for name, distribution in space.items()}
            if (key := tuple(settings.values())) not in drawn:
                break
        else:
            return
        drawn.add(key)
        yield settings


def format_settings(settings: Mapping[str, Any]) -> str:
    """Format settings for a title: short names and values."""
    return " ".join(
        f"{name.rpartition('.')[2]}={search_space.value_text(value)}"
        for name, value in settings.items()
    )


def _count_runs(plan: SweepPlan, space: search_space.SearchSpace) -> int:
    _check_plan(plan, space)
    combinations = search_space.count_combinations(space)
    if plan.strategy == "grid":
        return int(combinations)
    count = DEFAULT_RUNS if plan.count is None else plan.count
    if not 1 <= count <= MAX_RUNS:
        raise InvalidError(f"A sweep can have 1 to {MAX_RUNS} runs.", param="count")
    if count > combinations:
        raise InvalidError(
            f"There are only {combinations:.0f} combinations.",
            hint="Choose fewer runs, or a grid, which tries each combination once.",
            param="count",
        )
    return count


def _check_metric(plan: SweepPlan, recipe: AnyRecipe) -> None:
    """Refuse a metric that is measured after training, if it would not be or is needed earlier."""
    metric, _direction = plan.goal(recipe)
    if not is_evaluated(metric):
        return
    if recipe.evaluation.after_training == "none":
        raise InvalidError(
            "The runs of this recipe are not evaluated, so this metric would have no values.",
            hint="Turn on “Evaluate the finished model”, or choose another metric.",
            param="metric",
        )
    if plan.is_pruning:
        raise InvalidError(
            "Runs cannot be stopped early by a metric that is measured after training.",
            hint="Turn early stopping off, or choose a metric that is measured during training.",
            param="is_pruning",
        )


def _check_plan(plan: SweepPlan, space: search_space.SearchSpace) -> None:
    if search_space.count_combinations(space) < 2:  # noqa: PLR2004 -- one combination is no search
        raise InvalidError(
            "No setting varies yet.",
            hint="Give a setting several values or a range.",
            param="space",
        )
    if not 1 <= plan.parallel <= MAX_PARALLEL:
        raise InvalidError(f"Choose 1 to {MAX_PARALLEL} parallel runs.", param="parallel")
    if plan.is_pruning and plan.strategy != "tpe":
        raise InvalidError(
            "Only a TPE search can stop unpromising runs early.",
            hint="Choose TPE, or turn early stopping off.",
            param="is_pruning",
        )
    if plan.strategy != "grid":
        return
    for name, distribution in space.items():
        if distribution.grid() is None:
            raise InvalidError(
                "A grid needs discrete values, but this range is continuous.",
                hint="List the values, give the range a step, or use random search.",
                param=name,
            )
    count = search_space.count_combinations(space)
    if count > MAX_RUNS:
        raise InvalidError(
            f"A sweep can have at most {MAX_RUNS} runs; this grid has {count:,.0f}.",
            hint="Use fewer values, or random search.",
            param="space",
        )


def _grid_points(space: search_space.SearchSpace) -> Iterator[TrialSettings]:
    for values in product(*(distribution.grid() or () for distribution in space.values())):
        yield dict(zip(space, values, strict=True))


def _distinct(recipe: AnyRecipe, drawn: Iterable[TrialSettings]) -> Iterator[TrialSettings]:
    """Yield distinct effective settings."""
    seen_keys: set[frozenset[tuple[str, search_space.Scalar]]] = set()
    for settings in drawn:
        effective = effective_settings(recipe, settings)
        if (key := frozenset(effective.items())) not in seen_keys:
            seen_keys.add(key)
            yield effective


def _required_switch(
    recipe: AnyRecipe, space: Mapping[str, search_space.Distribution], name: str
) -> list[tuple[str, str]]:
    """Return the setting that must also be set for this one to have an effect.

    Raises:
        InvalidError: The sweep never tries the variant that the setting belongs to.

    """
    variant = variant_fields(type(recipe)).get(name)
    if variant is None:
        return []
    varied = space.get(variant.discriminator)
    tried_values = varied.values if isinstance(varied, search_space.Values) else []
    available = tried_values or [flatten(recipe.model_dump())[variant.discriminator]]
    matching = [kind for kind in variant.variants if kind in available]
    if not matching:
        message = (
            f"No run of this sweep uses it: it belongs to {variant.discriminator} "
            f"{variant.variants[0]}."
        )
        raise InvalidError(message, hint=f"Vary {variant.discriminator}, too.", param=name)
    return [(variant.discriminator, matching[0])]


def _convert_value(
    recipe: AnyRecipe, name: str, value: search_space.Scalar, switches: Sequence[tuple[str, str]]
) -> search_space.Scalar:
    parsed = None if value == "none" else value
    try:
        changed = merge(recipe.model_dump(), nest([*switches, (name, parsed)]))
        converted: search_space.Scalar = flatten(
            runs.with_overrides(recipe, changed, strict=False).model_dump()
        )[name]
    except InvalidError as error:
        raise InvalidError(
            f"{search_space.value_text(value)}: {error.message.partition(': ')[2]}", param=name
        ) from error
    return converted


def _refused_settings(
    message: str, hint: str, settings: Sequence[TrialSettings]
) -> RefusedSettings:
    return RefusedSettings(
        message=message, hint=hint, count=len(settings), example=format_settings(settings[0])
    )


def _estimate_seconds(db: Session, recipes: Sequence[AnyRecipe], count: int) -> dict[str, float]:
    """Return the total seconds of all runs in sequence, with bounds; empty if unknown."""
    inputs = estimates.load_inputs(db)
    version = cache(partial(versions.require, db))
    total: dict[str, float] = {}
    for recipe in recipes:
        similar_runs = reference_runs.find_similar(inputs.reference_runs, recipe)
        duration = run_duration.estimate_time(
            recipe, version(recipe.dataset), inputs.lengths(recipe), similar_runs
        )
        for name in ("seconds", "least_seconds", "most_seconds"):
            value = getattr(duration, name)
            if value is None:
                return {}
            total[name] = total.get(name, 0.0) + value * count / len(recipes)
    return total
