"""Distinct labels for runs: where two share a name, the settings that differ follow it."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from studio.db.tables import Run
from studio.recipe.dotted_keys import flatten
from studio.services.compare.seed_noise import SEEDS

MAX_SETTINGS = 2
SELF_EXPLANATORY = frozenset({"precision", "base_model", "dataset", "adapter.kind"})
"""Settings whose value says what they are."""


def label_runs(runs: Sequence[Run]) -> dict[int, str]:
    """Return a name for each run, by number. Runs of one name say which settings differ, too.

    Runs of one name and one recipe are left alike: only their numbers tell them apart.
    """
    counts = Counter(run.name for run in runs)
    labels = {run.id or 0: run.name for run in runs}
    for name in (name for name, count in counts.items() if count > 1):
        labels |= _labels_with_settings(name, [run for run in runs if run.name == name])
    return labels


def _labels_with_settings(name: str, runs: Sequence[Run]) -> dict[int, str]:
    recipes = [flatten(run.recipe.model_dump()) for run in runs]
    keys = [key for key in recipes[0] if len({repr(recipe.get(key)) for recipe in recipes}) > 1]
    # The seed says least, so it comes last.
    chosen = sorted(keys, key=lambda key: key in SEEDS)[:MAX_SETTINGS]
    about = [
        ", ".join(_format_setting(key, recipe.get(key)) for key in chosen) for recipe in recipes
    ]
    return {
        run.id or 0: f"{name} ({told})" if told else name
        for run, told in zip(runs, about, strict=True)
    }


def _format_setting(key: str, value: Any) -> str:  # noqa: ANN401 -- any value of a recipe
    leaf = key.rpartition(".")[2]
    return str(value) if key in SELF_EXPLANATORY else f"{leaf} {value}"
