"""Well-known small models on the Hugging Face Hub, to choose from before anything is downloaded.

Their dimensions are those of their configs. Parameters and bytes follow by arithmetic.
"""

from dataclasses import dataclass

from studio.weights.adapter_targets import LinearLayer
from studio.weights.architectures import FAMILY_KINDS, ModelKind
from studio.weights.family_limits import FAMILY_LAYERS, LayerSpec
from studio.weights.model_config import ModelShape
from studio.weights.model_facts import ModelFacts
from studio.weights.safetensors_headers import DType
from studio.weights.trained_weights import ModelWeight

_CAUSAL: ModelKind = "causal"
_DTYPE_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownModel:
    repo: str
    family: str
    shape: ModelShape | None = None
    """None for a model that is no decoder alone: its memory is not estimated."""
    parameters: int = 0
    """Their number, if there is no shape to compute it from."""
    dtype: DType = "bfloat16"
    """The dtype its weights are stored in."""
    is_gated: bool = False
    """Whether its terms must be accepted before it can be downloaded."""
    is_chat: bool = True
    """Whether it has a chat template."""

    @property
    def facts(self) -> ModelFacts:
        if self.shape is not None:
            return facts_from_shape(self.shape, self.family, self.dtype)
        return ModelFacts(
            family=self.family,
            kind=FAMILY_KINDS[self.family],
            declared_dtype=self.dtype,
            parameters=self.parameters,
            stored={self.dtype: 1.0},
            load_dtypes={self.dtype: self.parameters},
        )

    @property
    def bytes(self) -> int:
        return self.facts.parameters * _DTYPE_BYTES[self.dtype]


def facts_from_shape(
    shape: ModelShape, family: str, dtype: DType, parameters: int = 0
) -> ModelFacts:
    """Return what the dimensions of a decoder tell about its weights, without reading them.

    `parameters` replaces the computed number where the real one is known.
    """
    spec = FAMILY_LAYERS.get(family, LayerSpec())
    matrices = _layer_matrices(shape, spec)
    linear = shape.layers * sum(rows * columns for rows, columns in matrices)
    embeddings = shape.vocab_size * shape.hidden_size * (1 if shape.tied_embeddings else 2)
    norms = (2 * shape.layers + 1) * shape.hidden_size
    count = parameters or linear + embeddings + norms
    layers = tuple(
        LinearLayer(f"model.layers.{number}.{name}", rows, columns)
        for number in range(shape.layers)
        for name, (rows, columns) in zip(_layer_names(spec), matrices, strict=True)
    )
    return ModelFacts(
        family=family,
        kind=_CAUSAL,
        declared_dtype=dtype,
        parameters=count,
        weights=(*_table_weights(shape), *_layer_weights(shape, layers)),
        stored={dtype: 1.0},
        load_dtypes={dtype: count},
        linear_load_dtypes={dtype: linear},
        embedding_dtype=dtype,
        linear_features=shape.layers * sum(rows + columns for rows, columns in matrices),
        linear_layers=layers,
        linear_parameters=linear,
        linear_rows=shape.layers * sum(rows for rows, _columns in matrices),
        shape=shape,
    )


def _table_weights(shape: ModelShape) -> list[ModelWeight]:
    """Return the token embeddings and the output layer, which may be one."""
    size, tied = shape.vocab_size * shape.hidden_size, shape.tied_embeddings
    table = ModelWeight("model.embed_tokens", size, is_embedding=True, is_output=tied)
    return [table] if tied else [table, ModelWeight("lm_head", size, is_output=True)]


def _layer_weights(shape: ModelShape, layers: tuple[LinearLayer, ...]) -> list[ModelWeight]:
    """Return the matrices and norms of all decoder layers, and the last norm."""
    matrices = [ModelWeight(layer.path, layer.outputs * layer.inputs) for layer in layers]
    inner = [f"model.layers.{number}.norms" for number in range(shape.layers)]
    norms = [ModelWeight(name, 2 * shape.hidden_size) for name in inner]
    return [*matrices, *norms, ModelWeight("model.norm", shape.hidden_size)]


def _layer_names(layers: LayerSpec) -> list[str]:
    """Return the names of the linear layers of one decoder layer."""
    attention = [f"attention.{name}" for name in layers.attention_names]
    return [*attention, *(f"mlp.{name}" for name in layers.mlp_names)]


def _layer_matrices(shape: ModelShape, layers: LayerSpec) -> list[tuple[int, int]]:
    """Return outputs and inputs of each linear layer of one decoder layer."""
    hidden, inner = shape.hidden_size, shape.intermediate
    heads = [shape.query_width, shape.key_width, shape.key_width]
    gates = [inner, inner] if layers.gated_mlp else [inner]
    inputs = [sum(heads)] if layers.fused_qkv else heads
    ups = [sum(gates)] if layers.fused_gate_up else gates
    return [
        *((rows, hidden) for rows in inputs),
        (hidden, shape.query_width),
        *((rows, hidden) for rows in ups),
        (hidden, inner),
    ]


def _shape(  # noqa: PLR0913 -- the numbers of a config
    layers: int,
    hidden_size: int,
    intermediate: int,
    heads: int,
    kv_heads: int,
    vocab_size: int,
    *,
    head_size: int = 0,
    tied: bool = True,
    activation: str = "silu",
) -> ModelShape:
    return ModelShape(
        layers=layers,
        hidden_size=hidden_size,
        intermediate=intermediate,
        heads=heads,
        kv_heads=kv_heads,
        head_size=head_size or hidden_size // heads,
        vocab_size=vocab_size,
        tied_embeddings=tied,
        activation=activation,
    )


_GEMMA = "gelu_pytorch_tanh"
KNOWN_MODELS = (
    KnownModel(
        repo="openai-community/gpt2",
        family="gpt2",
        shape=_shape(12, 768, 3072, 12, 12, 50257, activation="gelu_new"),
        dtype="float32",
        is_chat=False,
    ),
    KnownModel(
        repo="HuggingFaceTB/SmolLM2-135M-Instruct",
        family="llama",
        shape=_shape(30, 576, 1536, 9, 3, 49152),
    ),
    KnownModel(
        repo="google/gemma-3-270m-it",
        family="gemma3_text",
        shape=_shape(18, 640, 2048, 4, 1, 262144, head_size=256, activation=_GEMMA),
        is_gated=True,
    ),
    KnownModel(
        repo="HuggingFaceTB/SmolLM2-360M-Instruct",
        family="llama",
        shape=_shape(32, 960, 2560, 15, 5, 49152),
    ),
    KnownModel(
        repo="Qwen/Qwen2.5-0.5B-Instruct",
        family="qwen2",
        shape=_shape(24, 896, 4864, 14, 2, 151936),
    ),
    KnownModel(
        repo="Qwen/Qwen3-0.6B",
        family="qwen3",
        shape=_shape(28, 1024, 3072, 16, 8, 151936, head_size=128),
    ),
    KnownModel(
        repo="google/gemma-3-1b-it",
        family="gemma3_text",
        shape=_shape(26, 1152, 6912, 4, 1, 262144, head_size=256, activation=_GEMMA),
        is_gated=True,
    ),
    KnownModel(
        repo="TinyLlama/TinyLlama-1.1B-Chat-v1.0",
        family="llama",
        shape=_shape(22, 2048, 5632, 32, 4, 32000, tied=False),
    ),
    KnownModel(
        repo="meta-llama/Llama-3.2-1B-Instruct",
        family="llama",
        shape=_shape(16, 2048, 8192, 32, 8, 128256),
        is_gated=True,
    ),
    KnownModel(
        repo="allenai/OLMo-2-0425-1B-Instruct",
        family="olmo2",
        shape=_shape(16, 2048, 8192, 16, 16, 100352, tied=False),
    ),
    KnownModel(
        repo="Qwen/Qwen2.5-1.5B-Instruct",
        family="qwen2",
        shape=_shape(28, 1536, 8960, 12, 2, 151936),
    ),
    KnownModel(
        repo="HuggingFaceTB/SmolLM2-1.7B-Instruct",
        family="llama",
        shape=_shape(24, 2048, 8192, 32, 32, 49152),
    ),
    KnownModel(
        repo="Qwen/Qwen3-1.7B",
        family="qwen3",
        shape=_shape(28, 2048, 6144, 16, 8, 151936, head_size=128),
    ),
    KnownModel(
        repo="HuggingFaceTB/SmolLM3-3B",
        family="smollm3",
        shape=_shape(36, 2048, 11008, 16, 4, 128256),
    ),
    KnownModel(
        repo="meta-llama/Llama-3.2-3B-Instruct",
        family="llama",
        shape=_shape(28, 3072, 8192, 24, 8, 128256),
        is_gated=True,
    ),
    KnownModel(
        repo="microsoft/Phi-3.5-mini-instruct",
        family="phi3",
        shape=_shape(32, 3072, 8192, 32, 32, 32064, tied=False),
    ),
    KnownModel(
        repo="Qwen/Qwen3-4B",
        family="qwen3",
        shape=_shape(36, 2560, 9728, 32, 8, 151936, head_size=128),
    ),
    KnownModel(
        repo="mistralai/Mistral-7B-Instruct-v0.3",
        family="mistral",
        shape=_shape(32, 4096, 14336, 32, 8, 32768, tied=False),
    ),
    KnownModel(
        repo="meta-llama/Llama-3.1-8B-Instruct",
        family="llama",
        shape=_shape(32, 4096, 14336, 32, 8, 128256, tied=False),
        is_gated=True,
    ),
    KnownModel(
        repo="Qwen/Qwen3-8B",
        family="qwen3",
        shape=_shape(36, 4096, 12288, 32, 8, 151936, head_size=128, tied=False),
    ),
)
"""From the smallest to the largest."""

KNOWN_ENCODER_DECODERS = tuple(
    KnownModel(repo=repo, family=family, parameters=parameters, dtype="float32", is_chat=False)
    for repo, family, parameters in (
        ("google-t5/t5-small", "t5", 60_506_624),
        ("google/flan-t5-small", "t5", 76_961_152),
        ("facebook/bart-base", "bart", 139_420_416),
        ("google-t5/t5-base", "t5", 222_903_552),
        ("google/flan-t5-base", "t5", 247_577_856),
    )
)
"""Models that read a text and write another, smallest first."""

KNOWN_ENCODERS = tuple(
    KnownModel(repo=repo, family=family, parameters=parameters, dtype="float32", is_chat=False)
    for repo, family, parameters in (
        ("distilbert/distilbert-base-uncased", "distilbert", 66_985_530),
        ("google-bert/bert-base-uncased", "bert", 110_106_428),
        ("FacebookAI/roberta-base", "roberta", 124_697_433),
        ("answerdotai/ModernBERT-base", "modernbert", 149_655_232),
        ("FacebookAI/xlm-roberta-base", "xlm-roberta", 278_295_186),
    )
)
"""Models that read a text from both sides and give labels or numbers, smallest first."""

KNOWN_IMAGE_TEXT_MODELS = (
    KnownModel(repo="Qwen/Qwen3-VL-2B-Instruct", family="qwen3_vl", parameters=2_127_532_032),
    KnownModel(repo="Qwen/Qwen2-VL-2B-Instruct", family="qwen2_vl", parameters=2_208_985_600),
    KnownModel(repo="Qwen/Qwen2.5-VL-3B-Instruct", family="qwen2_5_vl", parameters=3_754_622_976),
    KnownModel(repo="Qwen/Qwen3-VL-4B-Instruct", family="qwen3_vl", parameters=4_437_815_808),
    KnownModel(
        repo="llava-hf/llava-1.5-7b-hf",
        family="llava",
        parameters=7_063_427_072,
        dtype="float16",
    ),
)
"""Models that read images and text and write text, smallest first."""
