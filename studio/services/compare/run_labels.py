"""Labels of compared runs: the settings that differ among them, or else their names."""

from collections.abc import Mapping, Sequence
from typing import Any

from studio.db.tables import Run
from studio.recipe.dotted_keys import flatten

SEEDS = frozenset({"optimisation.seed"})
"""Recipe keys that only affect randomness."""

MAX_SETTINGS = 3
SEPARATOR = " \N{MIDDLE DOT} "
SHORT_NAMES = {
    "precision": "",
    "base_model": "",
    "dataset": "",
    "method": "",
    "adapter.kind": "",
    "optimisation.learning_rate": "lr",
    "adapter.r": "r",
    "adapter.lora_alpha": "alpha",
    "optimisation.per_device_train_batch_size": "batch",
    "optimisation.num_train_epochs": "epochs",
    "optimisation.max_steps": "steps",
    "data.max_length": "length",
}
"""What stands before the value, the most telling setting first; empty if the value says it."""
SHORT_VALUES = {"precision": {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}}
SMALL = 1e-3
"""Below this, powers of ten are shorter."""

FlatRecipe = Mapping[str, Any]


def label_runs(runs: Sequence[Run]) -> dict[int, str]:
    """Return a label for each run by id: what differs, with the seed if only that tells them apart.

    Runs that settings cannot tell apart have their names; only their ids may differ then.
    """
    labels = _label_by_settings(runs)
    if len(set(labels)) < len(labels):
        labels = _append_seeds(runs, labels)
    names = [run.name for run in runs]
    if len(set(labels)) < len(labels) and len(set(names)) > len(set(labels)):
        labels = names
    return {run.id or 0: label or run.name for run, label in zip(runs, labels, strict=True)}


def label_recipes(runs: Sequence[Run]) -> list[str]:
    """Return a label for the recipe of each run, whatever its seed."""
    labels = _label_by_settings(runs)
    return [label or run.name for run, label in zip(runs, labels, strict=True)]


def _label_by_settings(runs: Sequence[Run]) -> list[str]:
    recipes = [flatten(run.recipe.model_dump()) for run in runs]
    keys = _differing_keys(recipes)[:MAX_SETTINGS]
    return [SEPARATOR.join(_format(key, recipe[key]) for key in keys) for recipe in recipes]


def _differing_keys(recipes: Sequence[FlatRecipe]) -> list[str]:
    """Return the settings that all recipes have and in which they differ, most telling first."""
    order = list(SHORT_NAMES)
    keys = [
        key
        for key in recipes[0]
        if key not in SEEDS
        and all(key in recipe for recipe in recipes)
        and len({repr(recipe[key]) for recipe in recipes}) > 1
    ]
    return sorted(keys, key=lambda key: order.index(key) if key in order else len(order))


def _append_seeds(runs: Sequence[Run], labels: Sequence[str]) -> list[str]:
    seeds = [_format("optimisation.seed", run.recipe.optimisation.seed) for run in runs]
    if len(set(seeds)) == 1:
        return list(labels)
    return [SEPARATOR.join(filter(None, pair)) for pair in zip(labels, seeds, strict=True)]


def _format(key: str, value: Any) -> str:  # noqa: ANN401 -- any value of a recipe
    name = SHORT_NAMES.get(key, key.rpartition(".")[2].replace("_", " "))
    text = SHORT_VALUES.get(key, {}).get(str(value)) or _format_value(value)
    return f"{name} {text}".strip()


def _format_value(value: Any) -> str:  # noqa: ANN401 -- any value of a recipe
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, float) and 0 < abs(value) < SMALL:
        digits, _e, power = f"{value:.2e}".partition("e")
        return f"{digits.rstrip('0').rstrip('.')}e{int(power)}"
    return f"{value:g}" if isinstance(value, float) else str(value)
