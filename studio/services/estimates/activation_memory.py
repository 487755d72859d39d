"""What the layers of a decoder keep of a batch until the backward pass needs it, in bytes.

Put together from what each operation saves, by how a family's layers are made and what its config
says; tests count it again, tensor by tensor. Of families that nobody counted nothing is said.
"""

from dataclasses import dataclass

from studio.methods import AnyRecipe
from studio.recipe.adapters import Lora
from studio.recipe.precision import PRECISIONS
from studio.services.precision import number_formats
from studio.services.precision.number_formats import DTYPE_BYTES
from studio.weights.decoder_layers import FAMILY_LAYERS, DecoderLayers
from studio.weights.model_facts import ModelFacts
from studio.weights.model_shape import ModelShape

_PLAIN_MLP_VALUES, _GATED_MLP_VALUES = 2, 4
"""Numbers kept for each of the inner network's width: what goes into the activation and comes out
of it, and with a gate what it lets through and their product."""
_UNFUSED_ACTIVATION_VALUES = {"gelu_new": 3, "gelu_fast": 5}
"""Activations that are worked out step by step, and how many numbers more that keeps."""


@dataclass(frozen=True, slots=True)
class BatchShape:
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
class TrainingStep:
    """One step of training, and what is needed to say how much it holds."""

    recipe: AnyRecipe
    facts: ModelFacts
    shape: ModelShape
    load: BatchShape
    on_gpu: bool

    @property
    def is_adapter(self) -> bool:
        return isinstance(self.recipe.adapter, Lora)

    @property
    def computed(self) -> int:
        """Bytes of what comes out of a layer's products."""
        return DTYPE_BYTES[PRECISIONS[self.recipe.precision].compute]

    @property
    def held(self) -> int:
        """Bytes of a number between the layers: as wide as the table of tokens."""
        return DTYPE_BYTES[number_formats.hidden_state_dtype(self.recipe, self.facts)]

    @property
    def is_checkpointed(self) -> bool:
        return self.recipe.optimisation.activation_checkpointing

    @property
    def table(self) -> int:
        """Numbers in the vocabulary's table."""
        return self.shape.vocabulary * self.shape.hidden

    @property
    def made(self) -> DecoderLayers:
        """How its layers are made; of a family nobody counted, as most are."""
        return FAMILY_LAYERS.get(self.facts.family, FAMILY_LAYERS["llama"])

    @property
    def is_narrow(self) -> bool:
        """Whether products come out in 16 bits."""
        return self.computed < DTYPE_BYTES["float32"]

    @property
    def reads_copies(self) -> bool:
        """Whether each linear layer, or the adapter beside it, reads a copy of its own."""
        if not self.is_adapter:
            return self.held > self.computed
        # Beside packed weights peft widens what it reads, unless a GPU's autocast is at hand.
        is_left = self.recipe.adapter.quantised is not None and self.on_gpu
        return self.is_narrow and not is_left

    @property
    def keeps_inputs(self) -> bool:
        """Whether frozen layers keep what they read: bitsandbytes' of 8 bits do, for nothing."""
        row = self.recipe.adapter.quantised
        return row is not None and row.is_read_in_int8

    @property
    def widened(self) -> int:
        """Bytes of the largest packed weight while it is widened for a product."""
        is_packed = self.recipe.adapter.quantised is not None
        return self.shape.hidden * self.shape.intermediate * self.computed * is_packed

    @property
    def written(self) -> tuple[int, int]:
        """How wide keys and values are as they are kept: written out for each query, or shared."""
        shape = self.shape
        if shape.key_heads == shape.heads or not (self.load.is_padded or self.made.is_eager):
            return shape.keys, shape.keys
        if shape.key_heads > 1 or (self.made.is_eager and self.load.is_padded):
            return shape.queries, shape.queries
        # A single head is shared by a view, which to narrow it is written out.
        return (shape.queries if self.held > self.computed else shape.keys), shape.keys

    @property
    def writes_scores(self) -> bool:
        """Whether attention works its scores out one after the other, and keeps them.

        No fused kernel could round what it multiplies inside, and a processor's drops no scores.
        """
        drops = self.shape.drops_scores and not self.on_gpu
        return drops or emulates_bfloat16(self.recipe)

    @property
    def layer(self) -> int:
        """Bytes that one layer keeps."""
        is_fused = not self.made.is_eager and not self.writes_scores
        return self.load.tokens * bytes_per_token(self) + self._mask * is_fused

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
        read = self.held if self.made.norm == "layer" else 4 + self.held
        normed = 0 if self.is_adapter else read
        return self.load.tokens * self.shape.hidden * (normed + self.held)


def emulates_bfloat16(recipe: AnyRecipe) -> bool:
    """Whether products read less than the numbers hold, which no processor does by itself."""
    mode = PRECISIONS[recipe.precision]
    return mode.matmul == "bfloat16" and mode.compute == "float32"


def bytes_per_token(step: TrainingStep) -> int:
    """Return the bytes that a layer keeps of a token."""
    return sum(part(step) for part in (_norms, _inputs, _head_norms, _attention, _mlp, _lora_ranks))


def _norms(step: TrainingStep) -> int:
    """Return what the norms of a layer keep, and what is dropped of its outputs."""
    made, hidden = step.made, step.shape.hidden
    dropped = 2 * step.computed * hidden if step.shape.drops_outputs else 0
    if made.norm == "layer":
        # Its input, a mean and a deviation; of two that read the same, the input once.
        read = 1 if step.shape.is_parallel else 2
        return read * hidden * step.held + 2 * 2 * step.held + dropped
    before = 4 * hidden + _scaled(step, step.held) * hidden + 4
    after = 4 * hidden + _scaled(step, step.computed) * hidden + 4
    return 2 * (before * made.is_normed_before + after * made.is_normed_after) + dropped


def _scaled(step: TrainingStep, width: int) -> int:
    """Return the bytes a norm keeps of a number to learn by what it is scaled."""
    if step.is_adapter:
        return 0
    return 4 if step.made.norm == "wide" else width


def _inputs(step: TrainingStep) -> int:
    """Return what linear layers keep of the hidden numbers they read."""
    copies = sum(readers if step.reads_copies else 1 for readers in step.made.readers)
    beside = 2 if step.keeps_inputs and step.reads_copies else 0
    return (copies + beside) * step.computed * step.shape.hidden


def _head_norms(step: TrainingStep) -> int:
    """Return what it keeps to norm queries and keys."""
    shape, made = step.shape, step.made
    if not made.normed_heads:
        return 0
    sums = shape.heads + shape.key_heads if made.normed_heads == "each" else 2
    return (4 + _scaled(step, step.computed)) * (shape.queries + shape.keys) + 4 * sums


def _attention(step: TrainingStep) -> int:
    shape, made, width = step.shape, step.made, step.computed
    if made.is_eager or step.writes_scores:
        return _unfused_attention(step)
    keys, values = step.written
    is_copied = made.is_copied or (step.is_adapter and step.reads_copies)
    heads = (3 if is_copied else 2) * shape.queries + keys + values
    # Values that are a part of what one product gave keep all of it.
    joined = shape.queries + shape.keys if made.is_joined and values == shape.keys else 0
    # In float32, whatever the mode: a sum for each head.
    return width * (heads + joined) + 4 * shape.heads


def _unfused_attention(step: TrainingStep) -> int:
    """Return what attention keeps that works its scores out one after the other."""
    shape, width, length = step.shape, step.computed, step.load.length
    if step.made.is_eager:
        scores = 4 + width * (shape.is_capped + step.is_narrow)
        return width * (2 * shape.queries + sum(step.written)) + scores * shape.heads * length
    scores = 12 if shape.drops_scores else 4
    is_part = step.made.is_joined and shape.key_heads == shape.heads
    is_view = is_part and not step.is_narrow and step.load.batch == 1
    joined = 4 * (shape.queries + shape.keys) if is_view else 0
    # Queries, keys and values in float32, keys and values for each query.
    return (3 * 4 + width) * shape.queries + joined + scores * shape.heads * length


def _mlp(step: TrainingStep) -> int:
    kept = _GATED_MLP_VALUES if step.made.is_gated else _PLAIN_MLP_VALUES
    kept += _UNFUSED_ACTIVATION_VALUES.get(step.shape.activation, 0) + (
        step.keeps_inputs and step.reads_copies
    )
    return kept * step.computed * step.shape.intermediate


def _lora_ranks(step: TrainingStep) -> int:
    """Return the bytes kept between the two matrices of every adapter."""
    match step.recipe.adapter:
        case Lora(r=rank):
            return (sum(step.made.readers) + 2) * rank * step.computed
        case _:
            return 0
