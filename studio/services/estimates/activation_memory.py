"""Activation memory: the bytes that a model's layers keep of a batch for the backward pass.

The sum of what each operation saves, given how a family's layers are built and its config. Tests
verify it tensor by tensor. Families that were not verified get no estimate.

"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from studio.methods import AnyRecipe
from studio.recipe.adapters import Adapter, Ia3, Lora, Oft
from studio.recipe.precision import PRECISIONS, DType
from studio.services.estimates.judge_memory import JudgeFacts
from studio.services.precision import number_formats
from studio.services.precision.number_formats import DTYPE_BYTES
from studio.weights import encoder_layers
from studio.weights.adapter_targets import AdapterTargets, LinearLayer
from studio.weights.family_limits import FAMILY_LAYERS, LayerSpec
from studio.weights.model_config import ModelShape
from studio.weights.model_facts import ModelFacts
from studio.weights.trained_weights import TrainedPart

_PLAIN_MLP_VALUES, _GATED_MLP_VALUES = 2, 4
"""Values kept per unit of the MLP's inner width: the activation's input and output; with a gate
also what the gate lets through and their product."""
_UNFUSED_ACTIVATION_VALUES = {"gelu_new": 3, "gated-gelu": 3, "gelu_fast": 5}
"""Activations that are computed step by step, and how many more values that keeps."""
_KEEPS_OUTPUT = frozenset({"relu"})
"""Activations that keep their output alone."""


_ROTATION_COPIES = 5
"""Matrices that a rotation by four powers of a block keeps (`peft.tuners.oft`)."""


@dataclass(frozen=True, slots=True)
class BatchShape:
    """The largest batch, in tokens."""

    batch: int
    length: int
    """Length of the longest example; the others are padded to it."""
    answer_tokens: int
    """Tokens trained on in one example."""
    rows: int = 0
    """Total rows; 0 if unknown."""
    row_tokens: float = 0
    """Tokens of a row, on average."""
    validation_examples: int = 0
    """Validation examples; 0 if unknown."""
    is_packed: bool = False
    """Whether several rows are packed into one example."""

    @property
    def tokens(self) -> int:
        return self.batch * self.length

    @property
    def is_padded(self) -> bool:
        """Whether attention uses a mask; a single example does only if it is packed."""
        return self.batch > 1 or self.is_packed


@dataclass(frozen=True, slots=True)
class InputReaders:
    """How many linear layers of a decoder layer keep their input to train, by what they read."""

    attention: int
    attention_output: int
    mlp: int
    mlp_output: int

    @property
    def count(self) -> int:
        return self.attention + self.attention_output + self.mlp + self.mlp_output


@dataclass(frozen=True, slots=True)
class TrainingStep:
    """One training step and everything its memory depends on."""

    recipe: AnyRecipe
    facts: ModelFacts
    shape: ModelShape
    load: BatchShape
    on_gpu: bool
    is_writer: bool = False
    """Whether its layers are those of an encoder-decoder's decoder."""
    frozen: Literal["none", "matrices", "all"] = "none"
    """What is frozen in the layers that are counted, of the weights that others train."""
    teacher: ModelFacts | None = None
    """The facts of the recipe's teacher, if it has one."""
    judges: Sequence[JudgeFacts] = ()
    """The facts of the reward models that score answers."""

    @property
    def is_eager(self) -> bool:
        """Whether attention computes and keeps every score."""
        return self.recipe.model.attention == "eager" or self.layer_spec.eager_attention

    @property
    def is_adapter(self) -> bool:
        return isinstance(self.recipe.adapter, Adapter)

    @property
    def part(self) -> TrainedPart:
        """The weights of the model itself that are trained."""
        return self.recipe.trained

    @property
    def trains_rows(self) -> bool:
        """Whether only the rows of new tokens are trained of the output layer."""
        return self.part.new_tokens > 0 and not self.part.has_output

    @property
    def trains_norms(self) -> bool:
        """Whether the norms of the layers that are counted are trained."""
        return self.part.has_norms if self.is_adapter else self.frozen != "all"

    @property
    def readers(self) -> InputReaders:
        """The linear layers whose inputs are kept to train them or their adapters."""
        if isinstance(self.recipe.adapter, Ia3):
            # Factors of outputs need no inputs.
            return InputReaders(0, 0, 0, self.covered.mlp_output)
        return self.covered

    @property
    def covered(self) -> InputReaders:
        """The linear layers that are trained, or have an adapter."""
        spec, adapter = self.layer_spec, self.recipe.adapter
        if self.frozen != "none":
            return InputReaders(0, 0, 0, 0)
        targets = adapter.targets if isinstance(adapter, Adapter) else AdapterTargets()
        attention = [
            targets.covers(LinearLayer(f"attention.{name}")) for name in spec.attention_names
        ]
        mlp = [targets.covers(LinearLayer(f"mlp.{name}")) for name in spec.mlp_names]
        return InputReaders(sum(attention[:-1]), attention[-1], sum(mlp[:-1]), mlp[-1])

    @property
    def compute_bytes(self) -> int:
        """Bytes per value of the output of a layer's matrix products."""
        return DTYPE_BYTES[PRECISIONS[self.recipe.precision].compute]

    @property
    def hidden_state_bytes(self) -> int:
        """Bytes per value between the layers, which have the dtype of the token embeddings."""
        if self.widens_embeddings:
            return self.compute_bytes
        return DTYPE_BYTES[number_formats.hidden_state_dtype(self.recipe, self.facts)]

    @property
    def weight_dtype(self) -> DType:
        """The dtype of the model's weights, which is also that of its masks."""
        return number_formats.weight_dtype(self.recipe, self.facts)

    @property
    def mask_bytes(self) -> int:
        """Bytes of the attention mask that all layers read."""
        pairs = self.load.batch * self.load.length**2
        return pairs * DTYPE_BYTES[self.weight_dtype] * self.load.is_padded

    @property
    def widens_embeddings(self) -> bool:
        """Whether a linear layer gives the first hidden states, in the format of its products."""
        is_wider = 0 < self.shape.embedding_width < self.shape.hidden_size
        return self.layer_spec.narrow_embeddings or is_wider

    @property
    def softmax_bytes(self) -> int:
        """Bytes per value of eager attention's softmax: autocast computes it in float32."""
        is_autocast = PRECISIONS[self.recipe.precision].autocast is not None
        wide = self.layer_spec.wide_softmax or is_autocast
        return DTYPE_BYTES["float32"] if wide else self.compute_bytes

    @property
    def has_attention_dropout(self) -> bool:
        shape = self.shape
        is_same = self.layer_spec.dropout_everywhere and shape.residual_dropout
        return shape.attention_dropout or is_same

    @property
    def has_mlp_dropout(self) -> bool:
        shape = self.shape
        is_same = self.layer_spec.dropout_everywhere and shape.residual_dropout
        return shape.activation_dropout or is_same

    @property
    def is_checkpointed(self) -> bool:
        return self.recipe.optimisation.activation_checkpointing

    @property
    def is_offloaded(self) -> bool:
        """Whether activations are in the host's memory between the passes."""
        return self.on_gpu and self.recipe.optimisation.activation_offloading

    @property
    def embedding_size(self) -> int:
        """Number of values in the token embeddings."""
        return self.shape.vocab_size * self.shape.hidden_size

    @property
    def largest_trained(self) -> int:
        """Number of values in the largest trained weight of the model itself; 0 with an adapter."""
        if self.part.has_output:
            return self.embedding_size
        if self.part.last_layers:
            return self.shape.hidden_size * self.shape.intermediate
        return self.shape.hidden_size if self.part.has_norms else 0

    @property
    def layer_spec(self) -> LayerSpec:
        """How the family's layers are built; families that were not verified count as llama."""
        spec = encoder_layers.find(self.facts.family) or FAMILY_LAYERS["llama"]
        if self.shape.activation.startswith("gated-"):
            return replace(spec, gated_mlp=True, mlp_names=encoder_layers.GATED_T5)
        return spec

    @property
    def is_narrow(self) -> bool:
        """Whether matrix products are computed in 16 bits."""
        return self.compute_bytes < DTYPE_BYTES["float32"]

    @property
    def casts_inputs(self) -> bool:
        """Whether each linear layer, or its adapter, reads its own cast of the input."""
        if not self.is_adapter:
            return self.hidden_state_bytes > self.compute_bytes
        # With quantised weights, peft widens the input, unless autocast runs on a GPU.
        is_left = self.recipe.adapter.quantised is not None and self.on_gpu
        return self.is_narrow and not is_left

    @property
    def keeps_linear_inputs(self) -> bool:
        """Whether frozen layers keep their input; bitsandbytes' 8-bit layers do so needlessly."""
        row = self.recipe.adapter.quantised
        return row is not None and row.is_read_in_int8

    @property
    def dequantised_bytes(self) -> int:
        """Bytes of the largest quantised weight while it is widened for a product."""
        is_packed = self.recipe.adapter.quantised is not None
        return self.shape.hidden_size * self.shape.intermediate * self.compute_bytes * is_packed

    @property
    def key_value_widths(self) -> tuple[int, int]:
        """Widths of the stored keys and values: repeated for each query head, or shared."""
        shape = self.shape
        if shape.kv_heads == shape.heads or not (self.load.is_padded or self.is_eager):
            return shape.key_width, shape.key_width
        if shape.kv_heads > 1 or (self.is_eager and self.load.is_padded):
            return shape.query_width, shape.query_width
        # A single head is shared as a view; casting it to fewer bits copies it.
        return (
            shape.query_width if self.hidden_state_bytes > self.compute_bytes else shape.key_width
        ), shape.key_width

    @property
    def stores_attention_scores(self) -> bool:
        """Whether attention computes its scores step by step and keeps them.

        No fused kernel can round the factors inside it, and CPU kernels support no attention
        dropout.

        """
        drops = self.has_attention_dropout and not self.on_gpu
        return drops or emulates_bfloat16(self.recipe)

    @property
    def layer(self) -> int:
        """Bytes that one layer keeps for the backward pass."""
        is_fused = not self.is_eager and not self.stores_attention_scores
        whole = self._mask * is_fused + self._rotations
        return self.load.tokens * bytes_per_token(self) + whole

    @property
    def _rotations(self) -> int:
        """Bytes of a layer's rotations: the powers of each block, and what they add up to."""
        match self.recipe.adapter:
            case Oft(oft_block_size=size) as adapter if self.frozen == "none":
                covered = adapter.targets.select(self.facts.linear_layers)
                inputs = sum(layer.inputs for layer in covered)
                layers = adapter.targets.last_layers or self.shape.layers
                return _ROTATION_COPIES * 4 * size * round(inputs / layers)
            case _:
                return 0

    @property
    def _mask(self) -> int:
        """Bytes of a layer's own copy of the attention mask, in the dtype of its products."""
        length = self.load.length
        is_masked = self.load.is_padded and self.recipe.model.attention != "flash_attention_2"
        # A decoder's answers are padded at their end, which a causal mask hides.
        is_masked = is_masked and not self.is_writer
        return self.load.batch * length * length * self.compute_bytes if is_masked else 0

    @property
    def all_layers(self) -> int:
        """Bytes that all layers keep for the backward pass."""
        adapter, layers = self.recipe.adapter, self.shape.layers
        last = self.part.last_layers
        if isinstance(adapter, Adapter):
            last = adapter.targets.last_layers
        trained = layers if last is None else min(last, layers)
        if not self.part.reaches_first_layer:
            return trained * self.layer - self._before_first_adapter
        frozen = replace(self, frozen="matrices" if self.part.has_norms else "all")
        return trained * self.layer + (layers - trained) * frozen.layer

    @property
    def _before_first_adapter(self) -> int:
        """Bytes that the first layer's attention does not keep if only the MLP has adapters.

        Nothing before it is trained, so the backward pass ends at that layer's MLP.
        """
        if self.covered.attention or self.covered.attention_output:
            return 0
        return self.load.tokens * (_norms(self) // 2 + _head_norms(self) + _attention(self))

    @property
    def checkpointed_bytes(self) -> int:
        """Bytes of the inputs of all layers, the only thing that activation checkpointing keeps."""
        return (
            self.shape.layers * self.load.tokens * self.shape.hidden_size * self.hidden_state_bytes
        )

    @property
    def embedding_bytes(self) -> int:
        """Bytes that an encoder's embeddings keep to be trained: of their norm and dropout."""
        # Checkpointing needs gradients of what the first layer reads, even with an adapter.
        is_kept = not self.is_adapter or self.is_checkpointed
        if self.facts.kind != "encoder" or not is_kept:
            return 0
        width = DTYPE_BYTES[number_formats.hidden_state_dtype(self.recipe, self.facts)]
        return self.load.tokens * self.shape.embedding_width * width

    @property
    def final_norm_bytes(self) -> int:
        """Bytes that the final norm keeps, and its output."""
        read = (
            self.hidden_state_bytes
            if self.layer_spec.norm == "layer"
            else 4 + self.hidden_state_bytes
        )
        normed = read if self.part.has_norms and self.layer_spec.norm_first else 0
        return self.load.tokens * self.shape.hidden_size * (normed + self.hidden_state_bytes)


def emulates_bfloat16(recipe: AnyRecipe) -> bool:
    """Whether matrix products round float32 values to bfloat16, which has to be emulated."""
    mode = PRECISIONS[recipe.precision]
    return mode.matmul == "bfloat16" and mode.compute == "float32"


def bytes_per_token(step: TrainingStep) -> int:
    """Return the bytes that a layer keeps per token."""
    return sum(part(step) for part in (_norms, _inputs, _head_norms, _attention, _mlp, _adapter))


def _norms(step: TrainingStep) -> int:
    """Return the bytes per token that a layer's norms and residual dropout keep."""
    layers, hidden = step.layer_spec, step.shape.hidden_size
    dropped = 2 * step.compute_bytes * hidden if step.shape.residual_dropout else 0
    if layers.norm == "layer":
        # Input, mean and standard deviation; two norms with the same input keep it once.
        read = 1 if step.shape.parallel_residual else 2
        return read * hidden * step.hidden_state_bytes + 2 * 2 * step.hidden_state_bytes + dropped
    if layers.norm == "t5":
        return 2 * t5_norm(step) + dropped
    before = 4 * hidden + _scaled(step, step.hidden_state_bytes) * hidden + 4
    after = 4 * hidden + _scaled(step, step.compute_bytes) * hidden + 4
    return 2 * (before * layers.pre_norm + after * layers.post_norm) + dropped


def t5_norm(step: TrainingStep) -> int:
    """Return the bytes per token that a norm of T5 keeps: it reads and widens hidden states."""
    width = step.hidden_state_bytes
    read = 4 if width == DTYPE_BYTES["float32"] else 4 + width
    return (read + (width if step.trains_norms else 0)) * step.shape.hidden_size + 4


def _scaled(step: TrainingStep, width: int) -> int:
    """Return the bytes per value that a norm keeps to train its scale."""
    if not step.trains_norms:
        return 0
    return 4 if step.layer_spec.norm == "wide" else width


def _inputs(step: TrainingStep) -> int:
    """Return the bytes per token that linear layers keep of their inputs."""
    kept = (step.readers.attention, step.readers.mlp)
    copies = sum(readers if step.casts_inputs else min(readers, 1) for readers in kept)
    if step.keeps_linear_inputs:
        copies += sum(readers == 0 for readers in kept)
    extra_copies = 2 if step.keeps_linear_inputs and step.casts_inputs else 0
    return (copies + extra_copies) * step.compute_bytes * step.shape.hidden_size


def _head_norms(step: TrainingStep) -> int:
    """Return the bytes per token kept to normalise queries and keys."""
    shape, layers = step.shape, step.layer_spec
    if not layers.qk_norm:
        return 0
    sums = shape.heads + shape.kv_heads if layers.qk_norm == "each" else 2
    return (4 + _scaled(step, step.compute_bytes)) * (
        shape.query_width + shape.key_width
    ) + 4 * sums


def _attention(step: TrainingStep) -> int:
    shape, layers, width = step.shape, step.layer_spec, step.compute_bytes
    if step.is_eager or step.stores_attention_scores:
        return _unfused_attention(step)
    keys, values = step.key_value_widths
    is_copied = layers.copies_rotated_heads or (
        step.is_adapter and step.casts_inputs and step.readers.attention_output
    )
    heads = (3 if is_copied else 2) * shape.query_width + keys + values
    # Values that are a slice of a fused product keep all of it.
    joined = (
        shape.query_width + shape.key_width if layers.fused_qkv and values == shape.key_width else 0
    )
    # A log-sum-exp per head, always in float32.
    return width * (heads + joined) + 4 * shape.heads


def _unfused_attention(step: TrainingStep) -> int:
    """Return the bytes per token that attention keeps if it computes its scores step by step."""
    shape, width, length = step.shape, step.compute_bytes, step.load.length
    if step.is_eager:
        scores = _eager_scores(step)
        return (
            width * (2 * shape.query_width + sum(step.key_value_widths))
            + scores * shape.heads * length
        )
    scores = 12 if step.has_attention_dropout else 4
    is_part = step.layer_spec.fused_qkv and shape.kv_heads == shape.heads
    is_view = is_part and not step.is_narrow and step.load.batch == 1
    joined = 4 * (shape.query_width + shape.key_width) if is_view else 0
    # Queries, keys and values in float32, keys and values repeated for each query head.
    return (3 * 4 + width) * shape.query_width + joined + scores * shape.heads * length


def _eager_scores(step: TrainingStep) -> int:
    """Return the bytes per score: the softmax and its cast; with dropout, what is dropped, too."""
    wide, width = step.softmax_bytes, step.compute_bytes
    if step.has_attention_dropout:
        return 2 * wide + width
    return wide + width * (step.shape.attn_softcapping + (width < wide))


def _mlp(step: TrainingStep) -> int:
    values = _GATED_MLP_VALUES if step.layer_spec.gated_mlp else _PLAIN_MLP_VALUES
    is_output_kept = step.shape.activation in _KEEPS_OUTPUT
    values -= is_output_kept
    if step.has_mlp_dropout:
        # The mask, and another copy of an output that was kept.
        values += 1 + is_output_kept
    if not step.readers.mlp_output and not step.keeps_linear_inputs:
        values -= 1
    values += _UNFUSED_ACTIVATION_VALUES.get(step.shape.activation, 0) + (
        step.keeps_linear_inputs and step.casts_inputs
    )
    return values * step.compute_bytes * step.shape.intermediate


def _adapter(step: TrainingStep) -> int:
    """Return the bytes per token that adapters keep besides their inputs.

    LoRA keeps what is between its two matrices. Trained magnitudes multiply the outputs of the
    layer and of its adapter, and keep both; factors keep the outputs they multiply.
    """
    if step.frozen != "none":
        return 0
    adapter = step.recipe.adapter
    if not isinstance(adapter, Adapter):
        return 0
    covered = adapter.targets.select(step.facts.linear_layers)
    layers = adapter.targets.last_layers or step.shape.layers
    match adapter:
        case Lora(r=rank, lora_variant=variant):
            rows = sum(layer.outputs for layer in covered) or step.facts.linear_rows
            outputs = 2 * round(rows / layers)
            kept = outputs if variant.trains_magnitudes else 0
            return (step.readers.count * rank + kept) * step.compute_bytes
        case Ia3():
            rows = sum(layer.outputs for layer in covered if not layer.narrows)
            # Inputs are widened before they are scaled.
            wide = (4 - step.compute_bytes) * step.shape.intermediate * step.readers.mlp_output
            return round(rows / layers) * step.compute_bytes + wide
        case _:
            return 0
