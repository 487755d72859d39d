"""What the layers of a decoder keep of a batch until the backward pass needs it, in bytes.

Counted tensor by tensor, as autograd saves them, for each family named here; tests count them
again. Of other families nothing is said.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from studio.methods import AnyRecipe
from studio.recipe.adapters import Lora
from studio.recipe.precision import PRECISIONS
from studio.services import plans
from studio.services.plans import BYTES
from studio.weights.facts import ModelFacts
from studio.weights.shapes import Shape

FAMILIES: Mapping[str, bool] = {"llama": False, "mistral": False, "qwen2": False, "qwen3": True}
"""Families whose layers were counted, and whether they norm queries and keys."""

_LINEAR_LAYERS = 7


@dataclass(frozen=True, slots=True)
class Load:
    """What a batch holds at most, in tokens."""

    batch: int
    length: int
    """Of the longest example: others are padded to it."""
    answers: int
    """Tokens to learn in one example."""
    rows: int = 0
    """Rows in all; none where that is not known."""
    row_tokens: float = 0
    """Of a row, on average."""
    validated: int = 0
    """Examples to validate by; none where that is not known."""
    is_packed: bool = False
    """Whether rows share an example."""

    @property
    def tokens(self) -> int:
        return self.batch * self.length

    @property
    def is_padded(self) -> bool:
        """Whether attention is masked: one example alone never is, but for what shares it."""
        return self.batch > 1 or self.is_packed


@dataclass(frozen=True, slots=True)
class _Kept:
    """Bytes a layer keeps of a token: for each number of its widths."""

    hidden: int
    queries: int
    keys: int
    intermediate: int
    normed: int
    """For each query and key, where they are normed."""


_FULL = {
    ("float32", "float32"): _Kept(24, 8, 8, 16, 8),
    ("float32", "half"): _Kept(26, 4, 4, 8, 6),
    ("half", "half"): _Kept(16, 4, 4, 8, 6),
}
_BESIDE_FROZEN = {"float32": _Kept(16, 8, 8, 16, 4), "half": _Kept(18, 6, 4, 8, 4)}


@dataclass(frozen=True, slots=True)
class Step:
    """One step of training, and what is needed to say how much it holds."""

    recipe: AnyRecipe
    facts: ModelFacts
    shape: Shape
    load: Load
    on_gpu: bool

    @property
    def is_adapter(self) -> bool:
        return isinstance(self.recipe.adapter, Lora)

    @property
    def computed(self) -> int:
        """Bytes of what comes out of a layer's products."""
        return BYTES[PRECISIONS[self.recipe.precision].compute]

    @property
    def held(self) -> int:
        """Bytes of a number between the layers: as wide as the weights."""
        return BYTES[plans.held(self.recipe, self.facts)]

    @property
    def is_checkpointed(self) -> bool:
        return self.recipe.optimisation.activation_checkpointing

    @property
    def table(self) -> int:
        """Numbers in the vocabulary's table."""
        return self.shape.vocabulary * self.shape.hidden

    @property
    def layer(self) -> int:
        """Bytes that one layer keeps."""
        return self.load.tokens * _per_token(self) + self._mask

    @property
    def _mask(self) -> int:
        """Bytes of a layer's own copy of the mask, as wide as its products."""
        length = self.load.length
        return self.load.batch * length * length * self.computed if self.load.is_padded else 0

    @property
    def inputs(self) -> int:
        """Bytes of what goes into all layers, which is all that checkpointing keeps."""
        return self.shape.layers * self.load.tokens * self.shape.hidden * self.held

    @property
    def tail(self) -> int:
        """Bytes that the last norm keeps, and its output."""
        normed = 0 if self.is_adapter else 4 + self.held
        return self.load.tokens * self.shape.hidden * (normed + self.held)


def _per_token(step: Step) -> int:
    """Return the bytes that a layer keeps of a token."""
    shape, width = step.shape, "float32" if step.computed == BYTES["float32"] else "half"
    weights = "float32" if step.held == BYTES["float32"] else "half"
    kept = _BESIDE_FROZEN[width] if step.is_adapter else _FULL[weights, width]
    # Where attention is masked, shared keys are written out for each query.
    keys = shape.queries if step.load.is_padded else shape.keys
    widths = kept.hidden * shape.hidden + kept.intermediate * shape.intermediate
    attention = kept.queries * shape.queries + kept.keys * keys
    # In float32, whatever the mode: a sum for each head, and the scales of two norms.
    sums = 4 * (shape.heads + 2)
    return widths + attention + sums + _normed(step, kept) + _ranks(step)


def _normed(step: Step, kept: _Kept) -> int:
    if not FAMILIES[step.facts.family]:
        return 0
    shape = step.shape
    return kept.normed * (shape.queries + shape.keys) + 4 * (shape.heads + shape.key_heads)


def _ranks(step: Step) -> int:
    """Return the bytes kept between the two matrices of every adapter."""
    match step.recipe.adapter:
        case Lora(r=rank):
            return _LINEAR_LAYERS * rank * step.computed
        case _:
            return 0
