"""Whether a run fits into its device, and into the host memory next to a GPU.

A model is read on the host and then moved to the GPU, and trained weights are copied back to be
saved. Measured with a model of 240 million weights: read in the dtype of its files, it stays
memory-mapped and the system may drop any page of it; read in another dtype, it is held completely,
once. `safetensors` 0.8 copies everything it saves from a GPU before it writes; an optimizer is
written tensor by tensor.

"""

from dataclasses import dataclass
from typing import Literal

from studio.hardware import Hardware
from studio.methods import AnyRecipe
from studio.recipe.adapters import Lora
from studio.services.estimates import memory
from studio.services.estimates.activation_memory import BatchShape
from studio.services.precision import number_formats
from studio.weights.model_facts import ModelFacts

Verdict = Literal["fits", "tight", "too large"]
_VERDICT_ORDER: tuple[Verdict, ...] = ("fits", "tight", "too large")

TIGHT_SHARE = 0.85
"""The share of memory above which a run may fail: estimates err, and other processes need memory
too."""

CUDA_HOST_BYTES = 2_000_000_000
"""Host memory in bytes of a process with torch's CUDA libraries and a context. A generous
allowance that was not measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMemory:
    """Host memory in bytes of a run on a GPU."""

    loading: int
    """Weights that are read but not yet on the device."""
    saving: int
    """Trained weights while they are saved."""
    examples: int
    beside: int
    room: int

    @property
    def total(self) -> int:
        """Return the peak: loading is over long before saving starts."""
        return max(self.loading, self.saving) + self.examples

    @property
    def verdict(self) -> Verdict:
        return judge_fit(self.total + self.beside, self.room)


def judge_fit(needed: int, available: int) -> Verdict:
    """Return whether this many bytes fit."""
    if needed > available:
        return "too large"
    return "tight" if needed > TIGHT_SHARE * available else "fits"


def worst_verdict(*verdicts: Verdict) -> Verdict:
    return max(verdicts, key=_VERDICT_ORDER.index)


def estimate_host(
    recipe: AnyRecipe, facts: ModelFacts, batch: BatchShape, hardware: Hardware
) -> HostMemory | None:
    """Estimate a run's host memory; None if the host is its device or sizes are unknown."""
    sizes = number_formats.plan_dtypes(recipe, facts).sizes
    if hardware.device == "cpu" or sizes is None:
        return None
    return HostMemory(
        loading=0 if _stays_memory_mapped(recipe, facts) else sizes.weights,
        saving=sizes.adapter if isinstance(recipe.adapter, Lora) else sizes.weights,
        examples=memory.example_bytes(batch),
        beside=CUDA_HOST_BYTES,
        room=hardware.memory_bytes,
    )


def _stays_memory_mapped(recipe: AnyRecipe, facts: ModelFacts) -> bool:
    """Whether weights are loaded in the dtypes they are stored in."""
    if recipe.adapter.quantised is not None:
        return False
    return (
        number_formats.recipe_keeps_saved_dtypes(recipe)
        or facts.stored.get(number_formats.weight_dtype(recipe, facts), 0.0) == 1.0
    )
