"""Runs side by side: which settings differ, what came of it, and whether it is more than chance."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlmodel import Session, col, select

from studio.db.tables import Run, Sample
from studio.errors import InvalidError
from studio.recipe.dotted_keys import flatten
from studio.services.compare import comparable_metrics, recipe_differences, seed_noise
from studio.services.compare.comparable_metrics import MetricPair
from studio.services.compare.recipe_differences import SettingDifference
from studio.services.compare.run_labels import label_runs
from studio.services.compare.seed_noise import NoiseVerdict, RepeatStats, SeedNoise
from studio.services.runs import runs

MAX_RUNS = 50

LOWER_IS_BETTER = {
    "loss": True,
    "eval_loss": True,
    "best_eval_loss": True,
    "mean_token_accuracy": False,
    "eval_mean_token_accuracy": False,
    "tokens_per_second": False,
    "step_seconds": True,
    "train_seconds": True,
    "peak_memory_bytes": True,
    "skipped_steps": True,
    "rating": False,
}
"""Metrics with a direction. Any other is neither better nor worse when it changes."""

NOISELESS_METRICS = frozenset({"peak_memory_bytes", "skipped_steps"})
"""Counts that a repeat does not change much: any difference is one."""
PER_STEP_METRICS = frozenset({"step_seconds"})
"""Metrics that say something only between runs whose steps read as many examples."""
BATCH_SETTINGS = (
    "optimisation.per_device_train_batch_size",
    "optimisation.gradient_accumulation_steps",
    "data.max_length",
    "data.packing",
)
"""What makes steps of two runs unlike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricCell:
    """A run's final value of one metric, against the baseline's."""

    value: float | None
    delta: float | None = None
    """This minus the baseline's, as `reading` has them; None for the baseline itself, or where
    either is missing."""
    verdict: str = ""
    """better or worse; nothing where the metric has no direction or chance explains the delta."""
    noise: NoiseVerdict = ""
    """Where the delta lies against what seeds alone do; nothing where there is no delta."""
    repeats: RepeatStats | None = None
    """The metric over the run and its repeats, where there are at least two."""
    reading: MetricPair | None = None
    """What was compared, where it is not the final number of each."""

    @property
    def is_undecided(self) -> bool:
        """Whether runs cannot be told apart by it, for want of repeats or within their scatter."""
        return bool(self.delta) and not self.verdict and self.noise in {"unknown", "within"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    runs: Sequence[Run]
    base: Run
    settings: dict[str, list[Any]]
    """Dotted recipe key to the value in each run, in the order of `runs`."""
    differing: tuple[str, ...]
    """The keys whose values are not all alike."""
    differences: list[SettingDifference]
    metrics: dict[str, list[MetricCell]]
    noise: SeedNoise
    labels: dict[int, str]
    """A name for each run; see `label_runs`."""


def compare(db: Session, ids: Sequence[int], base_id: int | None = None) -> Comparison:
    """Lay runs side by side; the first is the baseline unless another is named.

    Raises:
        InvalidError: too many runs, or a baseline that is not among them.

    """
    found = load_runs(db, ids)
    base = next((run for run in found if run.id == base_id), None)
    if base_id is not None and base is None:
        raise InvalidError(f"Run {base_id} is not among the runs compared.", param="base")
    settings = _recipe_values(found)
    known = seed_noise.measure_noise(db, found)
    return Comparison(
        runs=found,
        base=base or found[0],
        settings=settings,
        differing=tuple(key for key, values in settings.items() if len(set(map(repr, values))) > 1),
        differences=recipe_differences.diff_recipes(found),
        metrics=_metric_cells(db, found, base or found[0], known),
        noise=known,
        labels=label_runs(found),
    )


def load_runs(db: Session, ids: Sequence[int]) -> list[Run]:
    """Return runs by number, each once.

    Raises:
        InvalidError: there are none, or too many.

    """
    unique = list(dict.fromkeys(ids))
    if len(unique) > MAX_RUNS:
        raise InvalidError(f"At most {MAX_RUNS} runs can be compared at once.", param="runs")
    if not unique:
        raise InvalidError("No runs to compare.", hint="Name some: ?runs=1,2", param="runs")
    return [runs.get(db, run_id) for run_id in unique]


def list_samples(db: Session, run_ids: Sequence[int]) -> list[Sample]:
    """Return the answers of runs, by prompt, in the order in which they were written."""
    # Of those of one step, "after" comes last: going down the alphabet, it does.
    order = (col(Sample.position), col(Sample.step), col(Sample.stage).desc(), col(Sample.id))
    return list(db.exec(select(Sample).where(col(Sample.run_id).in_(run_ids)).order_by(*order)))


def _recipe_values(found: Sequence[Run]) -> dict[str, list[Any]]:
    flat = [flatten(run.recipe.model_dump()) for run in found]
    names = dict.fromkeys(name for recipe in flat for name in recipe)
    return {name: [recipe.get(name) for recipe in flat] for name in names}


def _metric_cells(
    db: Session, found: Sequence[Run], base: Run, known: SeedNoise
) -> dict[str, list[MetricCell]]:
    names = dict.fromkeys(name for run in found for name in run.metrics)
    told = comparable_metrics.pair_metrics(db, found, base)
    return {
        name: [_metric_cell(name, run, base, told.get((run.id or 0, name)), known) for run in found]
        for name in names
    }


def _metric_cell(
    name: str, run: Run, base: Run, reading: MetricPair | None, known: SeedNoise
) -> MetricCell:
    value, repeats = run.metrics.get(name), known.repeats(run.id or 0, name)
    if run is base or reading is None:
        return MetricCell(value=value, repeats=repeats)
    delta = reading.value - reading.baseline
    noise = known.judge(run.id or 0, base.id or 0, name, delta)
    is_told = noise == "beyond" or name in NOISELESS_METRICS
    has_sense = name not in PER_STEP_METRICS or _batch_settings(run) == _batch_settings(base)
    return MetricCell(
        value=value,
        delta=delta,
        verdict=_verdict(name, delta) if is_told and has_sense else "",
        noise=noise,
        repeats=repeats,
        reading=None if reading.is_final else reading,
    )


def _batch_settings(run: Run) -> list[Any]:
    recipe = flatten(run.recipe.model_dump())
    return [recipe.get(key) for key in BATCH_SETTINGS]


def _verdict(name: str, delta: float) -> str:
    if not delta or math.isnan(delta) or name not in LOWER_IS_BETTER:
        return ""
    return "better" if (delta < 0) == LOWER_IS_BETTER[name] else "worse"
