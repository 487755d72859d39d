"""Everything Mantissa Studio knows about a model before loading it."""

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from studio.errors import InvalidError
from studio.weights import (
    architectures,
    family_limits,
    image_text,
    model_config,
    rounding_error,
    safetensors_headers,
    weight_samples,
)
from studio.weights.adapter_targets import LinearLayer
from studio.weights.architectures import ModelKind
from studio.weights.model_config import ModelShape
from studio.weights.rounding_error import CastRounding
from studio.weights.safetensors_headers import DType, TensorInfo
from studio.weights.trained_weights import ModelWeight
from studio.weights.weight_samples import WeightDefects, WeightStats

MAX_CONFIG_BYTES = 4 * 2**20
_EXPERT_LAYER = re.compile(r"\.(gate|router|experts)\.")
"""Occurs in the names of experts and routers, which are not linear layers once loaded."""

_MATRIX_DIMENSIONS = 2
FLOAT8_MULTIPLE = 16
"""8-bit matmuls need matrices whose sides are multiples of this (`torch._scaled_mm`)."""
_TRAINABLE = frozenset({"float64", "float32", "float16", "bfloat16"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """A model, as described by its config and weights. Unknown facts stay empty."""

    family: str = ""
    kind: ModelKind | None = None
    """The kind that a method must support to train it; None if only loading shows it."""
    language_family: str = ""
    """The family of the language model inside a model that reads images."""
    declared_dtype: str = ""
    """The dtype its config names."""
    rope: str = ""
    """How its rotary positions are scaled: `default`, a name, `by_layer`, or `none` if there are
    none; empty if the config does not say."""
    quantised: str = ""
    """Its quantisation method, if its config names one."""
    parameters: int = 0
    weights: tuple[ModelWeight, ...] = ()
    """All weights, in the order of the files."""
    stored: Mapping[str, float] = field(default_factory=dict)
    """Share of the parameters by stored dtype."""
    load_dtypes: Mapping[DType, int] = field(default_factory=dict)
    """Parameters by the dtype they are loaded in when each keeps its own."""
    linear_load_dtypes: Mapping[DType, int] = field(default_factory=dict)
    """The same for linear layers."""
    embedding_dtype: DType | None = None
    """The dtype the token embedding is loaded in then, which is also that of hidden states."""
    casts: Mapping[DType, CastRounding] = field(default_factory=dict)
    """The rounding of loading all weights in a dtype, by dtype."""
    unquantised_casts: Mapping[DType, CastRounding] = field(default_factory=dict)
    """The same for what is never quantised: all but the linear layers."""
    packed_layers: tuple[str, ...] = ()
    """Matrices stored in 8 bits or fewer, or as integers."""
    float64_layers: tuple[str, ...] = ()
    float8_unfit_layers: tuple[str, ...] = ()
    """The linear layers, except the output, with a side that 8-bit matmuls cannot use."""
    linear_features: int = 0
    """Sum of inputs and outputs of the layers that get an adapter: an adapter has `r` parameters
    for each."""
    linear_layers: tuple[LinearLayer, ...] = ()
    """The layers that can get an adapter."""
    linear_parameters: int = 0
    linear_rows: int = 0
    """Sum of outputs of all linear layers except the output."""
    expert_parameters: int = 0
    """Parameters of experts, which are loaded as stacked matrices and not as layers."""
    shape: ModelShape | None = None
    """None if the config does not give it, or gives impossible values. Of an encoder-decoder, its
    encoder's."""
    decoder: ModelShape | None = None
    """The shape of an encoder-decoder's decoder."""
    stats: WeightStats = field(default_factory=WeightStats)
    defects: WeightDefects = field(default_factory=WeightDefects)
    quantisation_errors: Mapping[str, float] = field(default_factory=dict)
    """Relative error of the linear layers in each quantised format."""

    @property
    def has_weights(self) -> bool:
        return self.parameters > 0

    @property
    def main_dtype(self) -> str:
        """The dtype of most parameters, or the config's if there are no weights."""
        return max(self.stored, key=lambda name: self.stored[name], default=self.declared_dtype)

    @property
    def has_dtype_mismatch(self) -> bool:
        """Whether config and weights have different dtypes; the weights are right."""
        return bool(self.declared_dtype and self.stored) and self.declared_dtype != self.main_dtype

    @property
    def mixed_float64(self) -> tuple[str, ...]:
        """The float64 layers of a model that also has other dtypes."""
        return self.float64_layers if len(self.stored) > 1 else ()

    def without_output(self) -> "ModelFacts":
        """Return the facts of the model without an output layer that is not the embeddings too."""
        dropped = sum(weight.size for weight in self.weights if _is_output_alone(weight))
        loaded = Counter(self.load_dtypes)
        if loaded:
            loaded[self.embedding_dtype or loaded.most_common(1)[0][0]] -= dropped
        return replace(
            self,
            parameters=self.parameters - dropped,
            weights=tuple(weight for weight in self.weights if not _is_output_alone(weight)),
            load_dtypes=dict(loaded),
        )

    def rounding_to(
        self, to: DType, *, keeps_own: bool = False, is_quantised: bool = False
    ) -> CastRounding | None:
        """Return the rounding of loading in a dtype, without layers that are quantised.

        If each weight keeps its dtype, only float64 is rounded, because no run supports it.
        """
        if keeps_own:
            return self.casts.get("float32")
        return (self.unquantised_casts if is_quantised else self.casts).get(to)

    def stalled_share(self, learning_rate: float) -> float:
        """Return the share of weights that bfloat16 updates would not change.

        Adam's first updates are about as large as the learning rate. A weight that changes by less
        than half the distance to its neighbour is rounded back.
        """
        return sum(
            share
            for power, share in self.stats.exponent_shares.items()
            if 2.0 ** (power - 8) > learning_rate
        )


def _is_output_alone(weight: ModelWeight) -> bool:
    return weight.is_output and not weight.is_embedding


def read(folder: Path) -> ModelFacts:
    """Read the facts of the model in a folder; without weights, those they give stay empty.

    Raises:
        InvalidError: a file in it is unreadable, truncated, or has impossible values.

    """
    config = read_config(folder / "config.json")
    tensors = [
        tensor
        for file in safetensors_headers.weight_files(folder)
        for tensor in safetensors_headers.read_tensors(file)
    ]
    weights = [tensor for tensor in tensors if tensor.is_float]
    linear = [tensor for tensor in weights if _is_linear(tensor, config)]
    others = [tensor for tensor in weights if not _is_linear(tensor, config)]
    dtypes = safetensors_headers.load_dtypes(tensors)
    return replace(
        _facts_from_config(config),
        parameters=sum(tensor.size for tensor in weights),
        weights=_model_weights(weights, config),
        stored=_dtype_shares(weights),
        load_dtypes=safetensors_headers.count_by_dtype(weights, dtypes),
        linear_load_dtypes=safetensors_headers.count_by_dtype(linear, dtypes),
        embedding_dtype=next(
            (dtypes[tensor.name] for tensor in weights if _is_embedding(tensor, config)), None
        ),
        casts=rounding_error.measure_casts(weights),
        unquantised_casts=rounding_error.measure_casts(others),
        packed_layers=tuple(tensor.name for tensor in tensors if _is_packed(tensor)),
        float64_layers=tuple(tensor.name for tensor in weights if tensor.dtype == "float64"),
        float8_unfit_layers=tuple(tensor.name for tensor in linear if _has_odd_side(tensor)),
        linear_features=sum(
            sum(tensor.shape) for tensor in weights if _gets_adapter(tensor, config)
        ),
        linear_layers=tuple(
            LinearLayer(tensor.name.removesuffix(".weight"), *_output_and_input(tensor, config))
            for tensor in weights
            if _gets_adapter(tensor, config) and _EXPERT_LAYER.search(tensor.name) is None
        ),
        linear_parameters=sum(tensor.size for tensor in linear),
        linear_rows=sum(tensor.shape[0] for tensor in linear),
        expert_parameters=sum(tensor.size for tensor in weights if ".experts." in tensor.name),
        stats=weight_samples.collect_stats(weights),
        defects=weight_samples.scan(weights),
        quantisation_errors=rounding_error.measure_errors(linear),
    )


def from_config(folder: Path) -> ModelFacts:
    """Read the facts that the config alone gives."""
    return _facts_from_config(read_config(folder / "config.json"))


def source_files(folder: Path) -> list[Path]:
    """Return the existing files that facts are read from."""
    candidates = [folder / "config.json", folder / safetensors_headers.INDEX_FILE]
    return [
        path for path in (*candidates, *safetensors_headers.weight_files(folder)) if path.is_file()
    ]


def read_config(path: Path) -> dict[str, Any]:
    """Return a model's config; {} if it does not exist.

    Raises:
        InvalidError: it is unreadable, or has impossible values.

    """
    if not path.is_file():
        return {}
    try:
        config = json.loads(path.read_bytes()) if path.stat().st_size <= MAX_CONFIG_BYTES else None
    except (ValueError, RecursionError) as error:
        raise InvalidError(f"{path.name} is not valid JSON.", param="base_model") from error
    if not isinstance(config, dict):
        raise InvalidError(f"{path.name} is not a model config.", param="base_model")
    model_config.check(config)
    return image_text.flatten(config)


def _facts_from_config(config: Mapping[str, Any]) -> ModelFacts:
    kind = architectures.kind_of(config)
    return ModelFacts(
        family=_family(config),
        kind=kind,
        language_family=image_text.language_family(config),
        declared_dtype=_declared_dtype(config),
        quantised=_quantisation_method(config),
        rope=_rope_kind(config),
        shape=model_config.read(config),
        decoder=model_config.read_decoder(config) if kind == "encoder_decoder" else None,
    )


def _family(config: Mapping[str, Any]) -> str:
    model_type = config.get("model_type")
    return (
        model_type
        if isinstance(model_type, str) and model_config.FAMILY_NAME.fullmatch(model_type)
        else ""
    )


def _declared_dtype(config: Mapping[str, Any]) -> str:
    inner = config.get("text_config")
    levels = (config, inner if isinstance(inner, dict) else {})
    dtypes = (level.get(name) for level in levels for name in ("dtype", "torch_dtype"))
    return next((dtype for dtype in dtypes if isinstance(dtype, str) and dtype in _TRAINABLE), "")


def _rope_kind(config: Mapping[str, Any]) -> str:
    """Return how rotary positions are scaled, under today's key or the older one."""
    found = config.get("rope_parameters") or config.get("rope_scaling")
    if not isinstance(found, dict):
        if config.get("rope_theta") is not None:
            return "default"
        return "none" if _family(config) in family_limits.WITHOUT_ROTARY else ""
    if any(isinstance(value, dict) for value in found.values()):
        return "by_layer"
    kind = found.get("rope_type", found.get("type", "default"))
    is_name = isinstance(kind, str) and model_config.FAMILY_NAME.fullmatch(kind)
    return str(kind) if is_name else ""


def _quantisation_method(config: Mapping[str, Any]) -> str:
    quantisation = config.get("quantization_config")
    method = quantisation.get("quant_method") if isinstance(quantisation, dict) else None
    return method if isinstance(method, str) and model_config.FAMILY_NAME.fullmatch(method) else ""


def _dtype_shares(tensors: Sequence[TensorInfo]) -> dict[str, float]:
    counted: Counter[str] = Counter()
    for tensor in tensors:
        counted[tensor.dtype] += tensor.size
    total = counted.total()
    return {dtype: count / total for dtype, count in counted.most_common() if count}


def _model_weights(
    tensors: Sequence[TensorInfo], config: Mapping[str, Any]
) -> tuple[ModelWeight, ...]:
    """Return the weights; an output layer that is in no file is the token embeddings."""
    outputs = {tensor.name for tensor in tensors if _is_output(tensor, config)}
    embeddings = {
        tensor.name
        for tensor in tensors
        if _is_embedding(tensor, config) and tensor.name not in outputs
    }
    return tuple(
        ModelWeight(
            tensor.name,
            tensor.size,
            tensor.name in embeddings,
            tensor.name in (outputs or embeddings),
        )
        for tensor in tensors
    )


def _gets_adapter(tensor: TensorInfo, config: Mapping[str, Any]) -> bool:
    layer = tensor.name.removesuffix(".weight").rpartition(".")[2]
    # By default, the parts of a model that read images are frozen.
    if image_text.part_of(tensor.name, _family(config)) is not None:
        return False
    return _is_linear(tensor, config) and layer not in family_limits.NO_ADAPTER_LAYERS.get(
        _family(config), ()
    )


def _output_and_input(tensor: TensorInfo, config: Mapping[str, Any]) -> tuple[int, int]:
    """Return the sides of a linear layer's matrix; some families store it transposed."""
    rows, columns = tensor.shape
    is_transposed = _family(config) in family_limits.TRANSPOSED
    return (columns, rows) if is_transposed else (rows, columns)


def _is_linear(tensor: TensorInfo, config: Mapping[str, Any]) -> bool:
    """Tell whether it is a linear layer's matrix, and not a token or position embedding."""
    tables = {config.get("vocab_size"), *_position_rows(tensor, config)}
    return (
        len(tensor.shape) == _MATRIX_DIMENSIONS
        and tensor.name.endswith("weight")
        and tables.isdisjoint(tensor.shape)
    )


def _is_embedding(tensor: TensorInfo, config: Mapping[str, Any]) -> bool:
    """Tell whether it is the token embedding, and not an output head."""
    is_matrix = len(tensor.shape) == _MATRIX_DIMENSIONS and tensor.shape[0] == config.get(
        "vocab_size"
    )
    return is_matrix and "head" not in tensor.name


def _is_output(tensor: TensorInfo, config: Mapping[str, Any]) -> bool:
    """Tell whether it belongs to the output layer; GPT-NeoX names it `embed_out`."""
    has_name = "head" in tensor.name or "embed_out" in tensor.name
    return has_name and tensor.shape[0] == config.get("vocab_size")


def _is_packed(tensor: TensorInfo) -> bool:
    is_matrix = len(tensor.shape) >= _MATRIX_DIMENSIONS and tensor.name.endswith("weight")
    return is_matrix and tensor.dtype not in _TRAINABLE


def _has_odd_side(tensor: TensorInfo) -> bool:
    is_layer = _EXPERT_LAYER.search(tensor.name) is None
    return is_layer and any(side % FLOAT8_MULTIPLE for side in tensor.shape)


def _position_rows(tensor: TensorInfo, config: Mapping[str, Any]) -> tuple[object, ...]:
    """Return the possible row counts of a position embedding, if the tensor may be one."""
    if "wpe" not in tensor.name and "position" not in tensor.name:
        return ()
    return (config.get("max_position_embeddings"), config.get("n_positions"))
