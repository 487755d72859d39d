"""Distinct labels for runs: if names repeat, the differing settings are appended."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from studio.db.tables import Run
from studio.recipe.dotted_keys import flatten
from studio.services.compare.seed_noise import SEEDS

MAX_SETTINGS = 2
SELF_EXPLANATORY = frozenset({"precision", "base_model", "dataset", "adapter.kind"})
"""Settings whose value needs no name beside it."""


def label_runs(runs: Sequence[Run]) -> dict[int, str]:
    """Return a label for each run, by id. Runs with equal names get their differing settings.

    Runs with equal names and recipes keep equal labels: only their ids differ.
    """
    counts = Counter(run.name for run in runs)
    labels = {run.id or 0: run.name for run in runs}
    for name in (name for name, count in counts.items() if count > 1):
        labels |= _labels_with_settings(name, [run for run in runs if run.name == name])
    return labels


def _labels_with_settings(name: str, runs: Sequence[Run]) -> dict[int, str]:
    recipes = [flatten(run.recipe.model_dump()) for run in runs]
    keys = [key for key in recipes[0] if len({repr(recipe.get(key)) for recipe in recipes}) > 1]
    # The seed is the least informative, so it comes last.
    shown_keys = sorted(keys, key=lambda key: key in SEEDS)[:MAX_SETTINGS]
    descriptions = [
        ", ".join(_format_setting(key, recipe.get(key)) for key in shown_keys) for recipe in recipes
    ]
    return {
        run.id or 0: f"{name} ({description})" if description else name
        for run, description in zip(runs, descriptions, strict=True)
    }


def _format_setting(key: str, value: Any) -> str:  # noqa: ANN401 -- any value of a recipe
    leaf = key.rpartition(".")[2]
    return str(value) if key in SELF_EXPLANATORY else f"{leaf} {value}"
