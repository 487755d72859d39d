"""The memory of a teacher, and of comparing a student with it."""

from studio.methods.distil import CPU_CHUNK_VALUES, GPU_CHUNK_VALUES, DistilRecipe
from studio.recipe.base import Teacher
from studio.services.estimates.activation_memory import TrainingStep
from studio.services.precision.number_formats import DTYPE_BYTES
from studio.weights.model_facts import ModelFacts

_LAYER_VALUES = (4, 3)
"""Values that a layer computes for a token without gradients: times its width, and that of its MLP.
"""


def weight_bytes(teacher: Teacher | None, facts: ModelFacts | None) -> int:
    """Return the bytes of a teacher's weights; 0 without one."""
    if teacher is None or facts is None:
        return 0
    return facts.parameters * _value_bytes(teacher, facts)


def is_converted(teacher: Teacher, facts: ModelFacts) -> bool:
    """Whether a teacher is loaded in another format than it is saved in."""
    return teacher.dtype != "native" and facts.stored.get(teacher.dtype, 0.0) < 1


def forward_bytes(step: TrainingStep, tokens: int) -> int:
    """Return the bytes that a teacher needs to read a number of tokens; 0 without one."""
    teacher, facts = step.recipe.teacher, step.teacher
    if teacher is None or facts is None or facts.shape is None:
        return 0
    width, inner = _LAYER_VALUES
    values = width * facts.shape.hidden_size + inner * facts.shape.intermediate
    return tokens * values * _value_bytes(teacher, facts)


def comparison_bytes(step: TrainingStep, rows: int) -> int:
    """Return the bytes of comparing answer tokens: a chunk of logits, and the teacher's states."""
    recipe, facts, vocabulary = step.recipe, step.teacher, step.shape.vocab_size
    if not isinstance(recipe, DistilRecipe) or facts is None or facts.shape is None:
        return 0
    values = GPU_CHUNK_VALUES if step.on_gpu else CPU_CHUNK_VALUES
    chunk = min(rows, max(1, values // vocabulary)) * vocabulary
    states = rows * facts.shape.hidden_size * _value_bytes(recipe.teacher, facts)
    return recipe.distillation.chunk_copies * DTYPE_BYTES["float32"] * chunk + states


def _value_bytes(teacher: Teacher, facts: ModelFacts) -> int:
    if teacher.dtype != "native":
        return DTYPE_BYTES[teacher.dtype]
    loaded = facts.load_dtypes
    return DTYPE_BYTES[max(loaded, key=lambda dtype: loaded[dtype], default="bfloat16")]
