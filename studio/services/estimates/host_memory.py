"""The host's memory of a run that trains on a GPU, computed before it starts.

Next to a GPU, a model is read on the host and then moved to the GPU, and trained weights are copied
back to be saved. Measured with a model of 240 million weights: read in the dtype of its files, it
stays memory-mapped and the system may drop any page of it; read in another dtype, it is held
completely, once. `safetensors` 0.8 copies everything it saves from a GPU before it writes; an
optimizer is written tensor by tensor.
"""

from dataclasses import dataclass

from studio.hardware import Hardware
from studio.methods import AnyRecipe
from studio.recipe.adapters import Adapter
from studio.services.estimates import teacher_memory, verified_models
from studio.services.estimates.activation_memory import BatchShape, TrainingStep
from studio.services.estimates.memory import example_bytes, kept_bytes
from studio.services.estimates.verdicts import Verdict, judge_fit
from studio.services.precision import number_formats
from studio.weights.model_facts import ModelFacts

CUDA_HOST_BYTES = 2_000_000_000
"""Host memory in bytes of a process with torch's CUDA libraries and a context. Measured on an H100:
1.9 to 2.0 GB at most in runs of 6.6 million weights."""


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
    offloaded: int = 0
    """Activations that wait there for the backward pass."""

    @property
    def total(self) -> int:
        """Return the peak: these are over before the next begins."""
        return max(self.loading, self.saving, self.offloaded) + self.examples

    @property
    def verdict(self) -> Verdict:
        return judge_fit(self.total + self.beside, self.room)


def estimate(
    recipe: AnyRecipe,
    facts: ModelFacts,
    batch: BatchShape,
    hardware: Hardware,
    teacher: ModelFacts | None = None,
) -> HostMemory | None:
    """Estimate a run's host memory; None if the host is its device or sizes are unknown."""
    sizes = number_formats.plan_dtypes(recipe, facts).sizes
    if hardware.device == "cpu" or sizes is None:
        return None
    return HostMemory(
        loading=(0 if _stays_memory_mapped(recipe, facts) else sizes.weights)
        + _converted_teacher_bytes(recipe, teacher),
        saving=sizes.adapter if isinstance(recipe.adapter, Adapter) else sizes.weights,
        examples=example_bytes(batch),
        beside=CUDA_HOST_BYTES,
        room=hardware.memory_bytes,
        offloaded=_offloaded_bytes(recipe, facts, batch),
    )


def _offloaded_bytes(recipe: AnyRecipe, facts: ModelFacts, batch: BatchShape) -> int:
    """Return the bytes of activations in the host's memory; 0 if they are unknown."""
    if facts.shape is None or not verified_models.is_supported(recipe, facts, on_gpu=True):
        return 0
    step = TrainingStep(recipe, facts, facts.shape, batch, on_gpu=True)
    return kept_bytes(step) if step.is_offloaded else 0


def _converted_teacher_bytes(recipe: AnyRecipe, teacher: ModelFacts | None) -> int:
    """Return the bytes of a teacher that is read in another dtype than that of its files."""
    if recipe.teacher is None or teacher is None:
        return 0
    is_converted = teacher_memory.is_converted(recipe.teacher, teacher)
    return teacher_memory.weight_bytes(recipe.teacher, teacher) * is_converted


def _stays_memory_mapped(recipe: AnyRecipe, facts: ModelFacts) -> bool:
    """Whether weights are loaded in the dtypes they are stored in."""
    if recipe.adapter.quantised is not None:
        return False
    return (
        number_formats.recipe_keeps_saved_dtypes(recipe)
        or facts.stored.get(number_formats.weight_dtype(recipe, facts), 0.0) == 1.0
    )
