"""The export formats of a run's model: what each costs, and why one may be refused."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from sqlmodel import Session

from studio.db.tables import Run
from studio.errors import InvalidError
from studio.recipe.exports import ExportKind, export_kinds
from studio.recipe.float_formats import FLOAT_FORMATS, DType
from studio.services.precision import recommendation
from studio.services.precision.number_formats import DTYPE_BYTES
from studio.weights import family_limits
from studio.weights.model_facts import ModelFacts
from studio.weights.weight_samples import FLOAT16_MAX

_SMALLEST_NORMAL_FLOAT16 = 2**-14
"""Below this, float16 loses precision (subnormal numbers) until values become zero."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOption:
    """One way to export a run's model."""

    kind: ExportKind
    dtype: DType
    bytes: int
    """Approximate size; 0 if the run did not report it."""
    cost: str
    """What it does to the weights, in one sentence."""
    refusal: str = ""
    """Why it is not possible, in one sentence."""
    caution: str = ""


def list_options(db: Session, run: Run, artifacts: Path) -> Iterator[ExportOption]:
    """Yield the export options of a run's model, the exact format of each kind first."""
    facts = load_weight_facts(db, run, artifacts)
    for kind in export_kinds(run.recipe.adapter):
        for dtype in get_args(DType):
            yield ExportOption(
                kind=kind,
                dtype=dtype,
                bytes=count_weights(run, kind) * DTYPE_BYTES[dtype],
                cost=_option_cost(run, kind, dtype, facts),
                refusal=explain_refusal(kind, dtype, facts),
                caution=_family_warning(kind, dtype, facts),
            )


def load_weight_facts(db: Session, run: Run, artifacts: Path) -> ModelFacts:
    """Return the facts of a run's weights: its own, or its adapter's base model's."""
    try:
        if run.recipe.adapter.kind == "full":
            return recommendation.read_model_facts(artifacts)
        return recommendation.load_model_facts(db, run.recipe.base_model)
    except InvalidError:  # the export itself reports unreadable files by name
        return ModelFacts()


def count_weights(run: Run, kind: ExportKind) -> int:
    """Return the number of exported weights as counted by the run, else 0."""
    trained = int(run.resolved.get("trainable_parameters", 0))
    if kind == "adapter":
        return trained
    counted = int(run.resolved.get("parameters", 0))
    # The run counted base and adapter; a merged adapter needs no space of its own.
    return max(0, counted - trained) if kind.startswith("merged") else counted


def explain_refusal(kind: ExportKind, dtype: DType, facts: ModelFacts) -> str:
    """Return why a format cannot hold the weights; empty if it can as far as known."""
    stats = facts.stats
    if kind == "adapter" or dtype != "float16" or not stats.over_float16:
        return ""
    return (
        f"{stats.over_float16:,} of {stats.sampled:,} sampled weights exceed "
        f"{FLOAT16_MAX:,.0f}, the largest float16 value; they would become infinite."
    )


def _option_cost(run: Run, kind: ExportKind, dtype: DType, facts: ModelFacts) -> str:
    if kind != "merged_original":
        return describe_cost(dtype, _stored_dtype(run, kind, facts))
    return "Most weights differ from the trained ones; the export measures by how much."


def describe_cost(dtype: DType, stored: str) -> str:
    """Describe what a format does to weights that are in another."""
    if dtype in {stored, "float32"}:
        return "No weight changes."
    float_format = FLOAT_FORMATS[dtype]
    change = f"A weight changes by up to {100 * float_format.eps / 2:.2g} %"
    if dtype == "float16":
        return (
            f"{change}, or more if it is smaller than {_SMALLEST_NORMAL_FLOAT16:.5f}; "
            f"weights above {float_format.max:,.0f} become infinite."
        )
    return f"{change}; none overflows, because the range equals float32's."


def _stored_dtype(run: Run, kind: ExportKind, facts: ModelFacts) -> str:
    """Return the dtype the weights are in now; merging an adapter makes them float32."""
    return (
        (facts.main_dtype or str(run.resolved.get("weights", ""))) if kind == "full" else "float32"
    )


def _family_warning(kind: ExportKind, dtype: DType, facts: ModelFacts) -> str:
    overflow = family_limits.FLOAT16_OVERFLOWS.get(facts.family)
    if kind == "adapter" or dtype != "float16" or overflow is None:
        return ""
    return f"{facts.family} models may fail in float16: {overflow.reason} ({overflow.source})."
