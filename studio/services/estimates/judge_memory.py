"""The memory of reward models that score answers while another model trains."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlmodel import Session

from studio.db.tables import Run
from studio.errors import InvalidError
from studio.methods import AnyRecipe
from studio.protocols import grader_judges
from studio.protocols.judging import BATCH_TOKENS
from studio.services.precision import recommendation
from studio.services.precision.number_formats import DTYPE_BYTES
from studio.weights.model_config import ModelShape

_LAYER_VALUES = (4, 3)
"""Values that a layer computes for a token without gradients: times its width, and that of its MLP.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeFacts:
    """What the memory of a reward model depends on, as its own run reported it."""

    parameters: int
    weight_bytes: int
    """The bytes of its weights while it was trained, with those that were frozen."""
    is_quantised: bool
    shape: ModelShape
    max_length: int
    """Tokens of a conversation that it reads at most."""

    def loaded_bytes(self, *, on_gpu: bool) -> int:
        """Return the bytes of its weights beside a model that trains: float32 on a CPU."""
        if on_gpu or self.is_quantised:
            return self.weight_bytes
        return self.parameters * DTYPE_BYTES["float32"]

    def work_bytes(self, answers: int) -> int:
        """Return the bytes of reading a batch of so many answers."""
        tokens = min(answers * self.max_length, max(BATCH_TOKENS, self.max_length))
        width, inner = _LAYER_VALUES
        values = width * self.shape.hidden_size + inner * self.shape.intermediate
        return tokens * values * DTYPE_BYTES["float32"]


def load(db: Session, recipe: AnyRecipe) -> Sequence[JudgeFacts] | None:
    """Return the facts of the reward models that a recipe asks; None if one is unknown."""
    found = [_load_one(db, name) for name in recipe.reward_models]
    known = [facts for facts in found if facts is not None]
    return known if len(known) == len(found) else None


def _load_one(db: Session, name: str) -> JudgeFacts | None:
    run = db.get(Run, grader_judges.reward_run(name))
    if run is None or not {"parameters", "weight_bytes"} <= run.resolved.keys():
        return None
    try:
        shape = recommendation.load_model_facts(db, run.recipe.base_model).shape
    except InvalidError:  # Its base model was deleted since.
        return None
    if shape is None:
        return None
    return JudgeFacts(
        parameters=run.resolved["parameters"],
        weight_bytes=run.resolved["weight_bytes"],
        is_quantised=run.recipe.adapter.quantised is not None,
        shape=shape,
        max_length=run.recipe.data.max_length,
    )


def weight_bytes(judges: Sequence[JudgeFacts], *, on_gpu: bool) -> int:
    """Return the bytes of the weights of reward models."""
    return sum(one.loaded_bytes(on_gpu=on_gpu) for one in judges)


def work_bytes(judges: Sequence[JudgeFacts], answers: int) -> int:
    """Return the bytes that they need to read answers, one after the other."""
    return max((one.work_bytes(answers) for one in judges), default=0)
