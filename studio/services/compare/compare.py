"""Compare runs side by side: settings, metrics, and whether differences exceed seed noise."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from pydantic import ValidationError
from sqlmodel import Session, col, select

from studio.db.tables import Run, Sample
from studio.errors import InvalidError
from studio.methods import METHODS, METRICS, RECIPE_ADAPTER, direction
from studio.recipe.dotted_keys import flatten
from studio.services.compare import comparable_metrics, seed_noise
from studio.services.compare.comparable_metrics import MetricPair
from studio.services.compare.run_labels import SEEDS, label_runs
from studio.services.compare.seed_noise import NoiseVerdict, RepeatStats, SeedNoise
from studio.services.runs import runs

NAME_KEY = "name"
IGNORED_KEYS = SEEDS | {NAME_KEY}
"""Differences that are hidden by default: they only identify a run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingDifference:
    """The values of one setting in all runs."""

    key: str
    """Dotted."""
    values: Sequence[Any]
    """One value per run; None also if a run has no such setting."""
    defaults: Sequence[bool]
    """Whether each run has the default value."""

    @property
    def differs(self) -> bool:
        return len({repr(value) for value in self.values}) > 1

    @property
    def path(self) -> list[str]:
        """The sections it is nested in, outermost first, then its own name."""
        return self.key.split(".")


def diff_recipes(runs: Sequence[Run]) -> list[SettingDifference]:
    """Return every setting that any of the runs has, names first, in recipe order."""
    flat = [{NAME_KEY: run.name} | flatten(run.recipe.model_dump()) for run in runs]
    defaults = [method_defaults(run.recipe.method, run.recipe.adapter.kind) for run in runs]
    keys = dict.fromkeys(key for recipe in flat for key in recipe)
    return [
        SettingDifference(
            key=key,
            values=[recipe.get(key) for recipe in flat],
            defaults=[
                key in recipe and key in default and recipe[key] == default[key]
                for recipe, default in zip(flat, defaults, strict=True)
            ],
        )
        for key in keys
    ]


def group_by_section(
    differences: Sequence[SettingDifference],
) -> dict[str, list[SettingDifference]]:
    """Group settings by recipe section; top-level settings come first."""
    sections: dict[str, list[SettingDifference]] = {"": []}
    for difference in differences:
        section = difference.path[0] if len(difference.path) > 1 else ""
        sections.setdefault(section, []).append(difference)
    return {name: rows for name, rows in sections.items() if rows}


@lru_cache(maxsize=64)
def method_defaults(method: str, adapter: str) -> Mapping[str, Any]:
    """Return the defaults of a method's recipe, without its required settings."""
    required = {"base_model": "-", "dataset": "-"}
    try:
        minimal = RECIPE_ADAPTER.validate_python(
            required | {"method": method, "adapter": {"kind": adapter}}
        )
    except ValidationError:  # a method of another version
        return {}
    flat = flatten(minimal.model_dump())
    return {key: value for key, value in flat.items() if key not in {*required, "adapter.kind"}}


MAX_RUNS = 50

BATCH_SETTINGS = (
    "optimisation.per_device_train_batch_size",
    "optimisation.gradient_accumulation_steps",
    "data.max_length",
    "data.packing",
)
"""Settings that determine the examples per step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricCell:
    """A run's final value of one metric, and its difference from the baseline."""

    value: float | None
    delta: float | None = None
    """This value minus the baseline's, as in `reading`; None for the baseline, if one is missing,
    or if their methods give the metric different meanings."""
    verdict: str = ""
    """better or worse; empty if the metric has no direction or noise explains the difference."""
    noise: NoiseVerdict = ""
    """The difference compared with seed noise; empty if there is no difference."""
    repeats: RepeatStats | None = None
    """Statistics over the run and its repeats, if there are at least two."""
    reading: MetricPair | None = None
    """The values compared, where they are not the final ones."""

    @property
    def is_undecided(self) -> bool:
        """Whether the difference is within the noise, or repeats are missing to tell."""
        return bool(self.delta) and not self.verdict and self.noise in {"unknown", "within"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    runs: Sequence[Run]
    base: Run
    settings: dict[str, Sequence[Any]]
    """Values in each run by dotted recipe key, in the order of `runs`."""
    differing: tuple[str, ...]
    """Keys whose values differ."""
    differences: list[SettingDifference]
    metrics: dict[str, list[MetricCell]]
    noise: SeedNoise
    labels: dict[int, str]
    """A label for each run; see `label_runs`."""

    def unit(self, key: str) -> str:
        """Return the unit of a metric, if the methods of all runs agree on it."""
        units = {METHODS[run.recipe.method].metrics.unit(key) for run in self.runs}
        return units.pop() if len(units) == 1 else ""


def compare(db: Session, ids: Sequence[int], base_id: int | None = None) -> Comparison:
    """Compare runs; the first is the baseline unless another is given.

    Raises:
        InvalidError: There are too many runs, or the baseline is not among them.

    """
    compared_runs = load_runs(db, ids)
    base = next((run for run in compared_runs if run.id == base_id), None)
    if base_id is not None and base is None:
        raise InvalidError(f"Run {base_id} is not among the runs compared.", param="base")
    differences = diff_recipes(compared_runs)
    settings = [setting for setting in differences if setting.key != NAME_KEY]
    noise = seed_noise.measure_noise(db, compared_runs)
    return Comparison(
        runs=compared_runs,
        base=base or compared_runs[0],
        settings={setting.key: setting.values for setting in settings},
        differing=tuple(setting.key for setting in settings if setting.differs),
        differences=differences,
        metrics=_metric_cells(db, compared_runs, base or compared_runs[0], noise),
        noise=noise,
        labels=label_runs(compared_runs),
    )


def load_runs(db: Session, ids: Sequence[int]) -> list[Run]:
    """Return runs by id, without duplicates.

    Raises:
        InvalidError: There are none, or too many.

    """
    unique = list(dict.fromkeys(ids))
    if len(unique) > MAX_RUNS:
        raise InvalidError(f"You can compare at most {MAX_RUNS} runs.", param="runs")
    if not unique:
        raise InvalidError("No runs to compare.", hint="Add some, e.g. ?runs=1,2", param="runs")
    return [runs.get(db, run_id) for run_id in unique]


def list_samples(db: Session, run_ids: Sequence[int]) -> list[Sample]:
    """Return the sample answers of runs, by prompt, in the order in which they were written."""
    # Descending order puts the stage "after" last within a step.
    order = (col(Sample.position), col(Sample.step), col(Sample.stage).desc(), col(Sample.id))
    return list(db.exec(select(Sample).where(col(Sample.run_id).in_(run_ids)).order_by(*order)))


def _metric_cells(
    db: Session, compared_runs: Sequence[Run], base: Run, noise: SeedNoise
) -> dict[str, list[MetricCell]]:
    names = dict.fromkeys(name for run in compared_runs for name in run.metrics)
    readings = comparable_metrics.pair_metrics(db, compared_runs, base)
    return {
        name: [
            _metric_cell(name, run, base, readings.get((run.id or 0, name)), noise)
            for run in compared_runs
        ]
        for name in names
    }


def _metric_cell(
    name: str, run: Run, base: Run, reading: MetricPair | None, seed_scatter: SeedNoise
) -> MetricCell:
    value, repeats = run.metrics.get(name), seed_scatter.repeats(run.id or 0, name)
    if run is base or reading is None:
        return MetricCell(value=value, repeats=repeats)
    spec = METRICS.get(name)
    if spec and spec.better and spec.source != "studio" and run.recipe.method != base.recipe.method:
        # A loss of preferences is not one of texts.
        return MetricCell(value=value, repeats=repeats)
    delta = reading.value - reading.baseline
    noise = seed_scatter.judge(run.id or 0, base.id or 0, name, delta)
    is_certain = noise == "beyond" or bool(spec and spec.is_noiseless)
    is_per_step = bool(spec and spec.is_per_step)
    has_sense = not is_per_step or _batch_settings(run) == _batch_settings(base)
    return MetricCell(
        value=value,
        delta=delta,
        verdict=_verdict(name, delta) if is_certain and has_sense else "",
        noise=noise,
        repeats=repeats,
        reading=None if reading.is_final else reading,
    )


def _batch_settings(run: Run) -> list[Any]:
    recipe = flatten(run.recipe.model_dump())
    return [recipe.get(key) for key in BATCH_SETTINGS]


def _verdict(name: str, delta: float) -> str:
    better = direction(name)
    if not delta or math.isnan(delta) or not better:
        return ""
    return "better" if (delta < 0) == (better == "lower") else "worse"
