"""Requested vs. actual configuration of a run, for its page."""

from dataclasses import asdict, dataclass
from typing import Any

from studio.db.tables import Run
from studio.recipe.dotted_keys import flatten
from studio.recipe.precision import PRECISIONS
from studio.web.i18n import formatting

FACT_NAMES = (
    *("Attention", "Attention kernel", "Autocast", "Compute", "Device", "Device name"),
    *("Dropped rows", "Effective batch size", "Embedding", "Gradients", "Kept in float32"),
    *("Linear", "Longest answer", "Longest example", "Master", "Matmul", "Matmul emulated"),
    *("Optimizer", "Optimizer states", "Parameters", "Scaler", "Seed", "Train examples"),
    *("Train rows", "Train tokens", "Trainable parameters", "Trained", "Trained tensors"),
    *("Truncated rows", "Validation rows", "Validation tokens", "Weights"),
)
"""Titles of the values that runs report most often. Other titles are not translated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """A requested value beside the actual one."""

    name: str
    requested: str
    actual: str
    differs: bool


def list_facts(run: Run) -> list[Fact]:
    """List requested beside actual values; for an audited run also plan beside audit."""
    resolved = dict(run.resolved)
    requested = _requested(run) | resolved.pop("plan", {})
    actual = resolved | resolved.pop("audit", {})
    return [_fact(name, requested, value) for name, value in flatten(actual).items()]


def _requested(run: Run) -> dict[str, Any]:
    """Return what the recipe requests, under the names that a run reports."""
    steps = run.recipe.optimisation
    batch = steps.per_device_train_batch_size * steps.gradient_accumulation_steps
    mode = asdict(PRECISIONS[run.recipe.precision])
    return mode | {"seed": steps.seed, "effective_batch_size": batch}


def _fact(name: str, requested: dict[str, Any], actual: object) -> Fact:
    requested_value = requested.get(name)
    return Fact(
        name=name.rpartition(".")[2] if "." in name else formatting.metric_title(name),
        requested=formatting.setting(requested_value),
        actual=formatting.size(actual)
        if isinstance(actual, int) and name.endswith("_bytes")
        else formatting.setting(actual),
        differs=name in requested and requested_value != actual,
    )
