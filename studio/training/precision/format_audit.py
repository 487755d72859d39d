"""The number formats of a training step: plan them, and audit them by measuring.

A plan is computed from the mode, the adapter and the model family before the model is loaded. An
audit checks the model, the optimizer, and what a small forward pass computes in.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedConfig, PreTrainedModel, Trainer
from transformers.pytorch_utils import Conv1D

from studio.recipe.adapters import Adapter
from studio.recipe.base import Recipe
from studio.recipe.optimizers import OPTIMIZERS, OptimizerRow
from studio.recipe.precision import PRECISIONS, Precision
from studio.training.models import heads, loader, quantised_weights, vision_parts
from studio.training.models.eval_context import evaluation_mode
from studio.training.models.weight_formats import WeightFormats
from studio.training.precision import float8, matmul_precision

NONE = "none"
_AND = " and "
_PROBE_TOKENS = 8
_PROBE_SHAPE = (64, 64)
"""The shape of the weights that show what an optimizer keeps: large enough for 8-bit states."""
_MATRIX_DIMS = 2
_ADAPTER = re.compile(r"(?:^|\.)(?:lora|oft|ia3)_")
_ATTENTION_PREFIX = "_scaled_dot_product_"


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberFormats:
    """The formats that a plan and an audit must agree on."""

    weights: str
    """Format of the frozen weights, or of all weights if all are trained. For a quantised model:
    its linear layers. For a model saved in several formats that are kept: all of these."""
    kept_in_float32: tuple[str, ...]
    """Parts of the model that its family never loads in 16 bits, as name patterns."""
    rest: str
    """For a quantised model: embeddings, norms and the output layer."""
    trained: str
    gradients: str
    compute: str
    """The format of a matrix product's result."""
    matmul: str
    """The format a matrix product reads."""
    autocast: str
    scaler: bool
    optimizer: str
    optimizer_states: str
    master: str
    attention: str

    def differences(self, found: "NumberFormats") -> str:
        """Return the differences from these formats as text."""
        planned, measured = asdict(self), asdict(found)
        return "; ".join(
            f"{name.replace('_', ' ')} should be {_format_value(planned[name])} and is "
            f"{_format_value(measured[name])}"
            for name in planned
            if planned[name] != measured[name]
        )


def plan_formats(recipe: Recipe, formats: WeightFormats, config: PreTrainedConfig) -> NumberFormats:
    """Plan the formats from the mode and from what is known of the model before it loads."""
    weights = formats.main
    mode = PRECISIONS[recipe.precision]
    lora = isinstance(recipe.adapter, Adapter)
    optim = OPTIMIZERS[recipe.optimisation.optim]
    trained = "float32" if lora else mode.gradients
    row = recipe.adapter.quantised
    is_read_in_int8 = row is not None and row.is_read_in_int8 and torch.cuda.is_available()
    return NumberFormats(
        weights=row.name if row else join_formats(formats.all_formats),
        kept_in_float32=loader.kept_in_float32(config, weights),
        rest=weights if row else NONE,
        trained="float32" if lora else mode.weights,
        gradients=trained,
        compute=mode.compute,
        matmul="int8" if is_read_in_int8 else mode.matmul,
        autocast=mode.autocast or NONE,
        scaler=mode.scaler,
        optimizer=mode.optimizer if optim.is_adamw else optim.title,
        optimizer_states=_planned_states(optim, mode),
        master=mode.master or NONE,
        attention=loader.attention_implementation(config),
    )


def _planned_states(optim: OptimizerRow, mode: Precision) -> str:
    if optim.has_8bit_states:
        return join_formats([torch.uint8])
    return NONE if optim.name == "sgd" else mode.optimizer_states


def audit_trainer(trainer: Trainer, planned: NumberFormats) -> tuple[NumberFormats, dict[str, Any]]:
    """Measure the formats of the weights, the optimizer and a small forward pass."""
    float32_weights = weights_kept_in_float32(trainer.model, planned)
    trainable = [p for p in trainer.model.parameters() if p.requires_grad]
    trained = [p for p in trainable if p not in float32_weights]
    weights, rest = _frozen_formats(trainer.model, float32_weights)
    with float8.record_operands(trainer.model, trainer.mode) as readings:
        probe = _ForwardProbe.measure(trainer.model_wrapped, trainer.args.device)
    states, master = optimizer_formats(
        _stepped_copy(trainer.optimizer, float32_weights), float32_weights
    )
    scaler = trainer.accelerator.scaler
    numbers = NumberFormats(
        weights=weights if weights != NONE else join_formats(p.dtype for p in trained),
        kept_in_float32=_verified_parts(trainer.model, planned),
        rest=rest,
        trained=join_formats(p.dtype for p in trained),
        # Torch gives a gradient the format of its weight; verified after the first step.
        gradients=join_formats(p.dtype for p in trained),
        compute=probe.compute,
        matmul=readings.matmul or probe.matmul,
        autocast=probe.autocast,
        scaler=scaler is not None and scaler.is_enabled(),
        optimizer=_optimizer_title(trainer.optimizer),
        optimizer_states=states,
        master=master,
        attention=trainer.model.config._attn_implementation,  # noqa: SLF001 -- no public name
    )
    return numbers, {
        "attention_kernel": probe.attention_kernel,
        "trained_tensors": f"{len(trainable)}, all in the optimizer",
        **readings.summary,
        "formats": _formats_by_layer(trainer.model),
        **_quantised_summary(trainer.model),
    }


def weights_without_optimizer(trainer: Trainer) -> list[str]:
    """Return the names of trainable weights that are in no optimizer."""
    optimized_ids = {id(p) for group in trainer.optimizer.param_groups for p in group["params"]}
    parameters = trainer.model.named_parameters()
    return [name for name, p in parameters if p.requires_grad and id(p) not in optimized_ids]


def weights_in_other_formats(trainer: Trainer, planned: NumberFormats) -> list[str]:
    """Return the weights whose format is in no plan, each with its format."""
    usual = {*planned.weights.split(_AND), planned.rest, planned.trained}
    float32_weights = weights_kept_in_float32(trainer.model, planned)
    return [
        f"{name} is {join_formats({p.dtype})}"
        for name, p in trainer.model.named_parameters()
        if p.is_floating_point()
        and join_formats({p.dtype}) not in ({"float32"} if p in float32_weights else usual)
    ]


def weights_kept_in_float32(model: nn.Module, planned: NumberFormats) -> set[Tensor]:
    """Return the weights that the plan keeps in float32, whatever the format of the others."""
    parameters = model.named_parameters()
    return {
        p
        for name, p in parameters
        if any(loader.matches_part(name, part) for part in planned.kept_in_float32)
    }


def optimizer_formats(
    optimizer: torch.optim.Optimizer, without: AbstractSet[Tensor] = frozenset()
) -> tuple[str, str]:
    """Return the formats of an optimizer's states and of its master copy of the weights.

    Of 8-bit states, those that are kept in float32 by design are left out.
    """
    in_8bit = getattr(getattr(optimizer, "optimizer", optimizer), "formats_in_8bit", None)
    if in_8bit is not None:
        return join_formats(in_8bit()), NONE
    dtypes: dict[bool, set[torch.dtype]] = {True: set(), False: set()}
    for state in (state for weight, state in optimizer.state.items() if weight not in without):
        for name, value in state.items():
            if isinstance(value, Tensor) and value.is_floating_point() and value.dim():
                dtypes[name == "master"].add(value.dtype)
    return join_formats(dtypes[False]), join_formats(dtypes[True])


def join_formats(formats: Iterable[torch.dtype | str]) -> str:
    names = {str(dtype).removeprefix("torch.") for dtype in formats}
    return _AND.join(sorted(names)) or NONE


def _format_value(value: object) -> str:
    return _AND.join(value) or NONE if isinstance(value, tuple) else str(value)


def _verified_parts(model: nn.Module, planned: NumberFormats) -> tuple[str, ...]:
    """Return the planned float32 parts in which every tensor is float32."""
    tensors = [*model.named_parameters(), *model.named_buffers()]
    narrow = [name for name, t in tensors if t.is_floating_point() and t.element_size() < 4]  # noqa: PLR2004 -- bytes
    return tuple(
        part
        for part in planned.kept_in_float32
        if not any(loader.matches_part(name, part) for name in narrow)
    )


def _frozen_formats(
    model: PreTrainedModel, float32_weights: AbstractSet[Tensor]
) -> tuple[str, str]:
    """Return the formats of the frozen weights, and of those that are not quantised."""
    frozen = [p for p in model.parameters() if not p.requires_grad and p not in float32_weights]
    floats = join_formats(p.dtype for p in frozen if p.is_floating_point())
    if not any(map(quantised_weights.is_quantised, frozen)):
        return floats, NONE
    # Stacked matrices are weights as well, but no library quantises them yet.
    stacks = [p for p in frozen if p.dim() > _MATRIX_DIMS and min(p.shape) > 1]
    inner = [
        layer.weight for layer in _linear_layers(model) if layer not in heads.output_modules(model)
    ]
    return join_formats(map(quantised_weights.format_name, inner + stacks)), floats


def _linear_layers(model: nn.Module) -> list[Any]:
    """Return the linear layers of the model itself, without an adapter's."""
    modules = model.named_modules()
    return [
        module
        for path, module in modules
        if isinstance(module, nn.Linear | Conv1D) and not _ADAPTER.search(path)
    ]


def _quantised_summary(model: nn.Module) -> dict[str, str]:
    layers = _linear_layers(model)
    quantised = [layer.weight for layer in layers if quantised_weights.is_quantised(layer.weight)]
    if not quantised:
        return {}
    formats = join_formats(map(quantised_weights.format_name, quantised))
    return {"quantised_layers": f"{len(quantised)} of {len(layers)} linear layers are {formats}"}


def _stepped_copy(
    optimizer: Any,  # noqa: ANN401 -- accelerate's wrapper is untyped
    without: AbstractSet[Tensor],
) -> torch.optim.Optimizer:
    """Return a copy of the optimizer after one step with small weights of a group's formats."""
    inner = getattr(optimizer, "optimizer", optimizer)
    optimizer_copy: torch.optim.Optimizer = object.__new__(type(inner))
    # Not by `copy.copy`, which leaves out what an optimizer adds to torch's own attributes. A
    # scheduler replaces `step` by one that is bound to the original.
    vars(optimizer_copy).update({k: v for k, v in vars(inner).items() if k != "step"})
    groups = []
    for group in optimizer_copy.param_groups:
        formats = {(p.dtype, p.device) for p in group["params"] if p not in without}
        weights = [
            torch.zeros(_PROBE_SHAPE, dtype=dtype, device=device) for dtype, device in formats
        ]
        for weight in weights:
            weight.requires_grad_().grad = torch.zeros_like(weight)
        groups.append({**group, "params": weights})
    optimizer_copy.state = defaultdict(dict)
    optimizer_copy.param_groups = groups
    optimizer_copy.step()
    return optimizer_copy


def _optimizer_title(optimizer: Any) -> str:  # noqa: ANN401 -- accelerate's wrapper is untyped
    inner = getattr(optimizer, "optimizer", optimizer)
    return getattr(inner, "title", type(inner).__name__)


def _formats_by_layer(model: nn.Module) -> dict[str, str]:
    """Return the weights' formats by type of layer."""
    formats_by_kind: dict[str, set[str]] = defaultdict(set)
    for path, module in model.named_modules():
        kind = "adapter" if _ADAPTER.search(path) else type(module).__name__
        formats_by_kind[kind].update(
            map(quantised_weights.format_name, module.parameters(recurse=False))
        )
    return {kind: join_formats(formats) for kind, formats in formats_by_kind.items() if formats}


class _ForwardProbe(TorchDispatchMode):  # type: ignore[no-untyped-call] # upstream is untyped
    """Records the formats of the first product and the attention kernel in a forward pass."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # upstream is untyped
        self.compute = self.matmul = self.autocast = NONE
        self.attention_kernel = "no fused kernel"
        self._device = device

    @classmethod
    def measure(cls, model: nn.Module, device: torch.device) -> "_ForwardProbe":
        probe = cls(device)
        # Heads compute in float32, and some families define theirs first.
        head = heads.output_modules(model)
        linear = vision_parts.language_modules(model, nn.Linear | Conv1D)
        first = next(m for m in linear if m not in head)
        hook = first.register_forward_hook(probe._record)
        tokens = torch.zeros((2, _PROBE_TOKENS), dtype=torch.long, device=device)
        # Padded like a real batch, because attention chooses its kernel by the mask.
        mask = torch.ones_like(tokens)
        mask[1, -1] = 0
        inputs = {"input_ids": tokens, "attention_mask": mask}
        if heads.is_encoder_decoder(model.config):
            inputs["decoder_input_ids"] = tokens
        try:
            with evaluation_mode(model), probe:
                model(**inputs, use_cache=False)
        finally:
            hook.remove()
        return probe

    def _record(self, layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        kind = self._device.type
        weight: Any = layer.weight
        self.compute = join_formats({output.dtype})
        if torch.is_autocast_enabled(kind):
            self.autocast = join_formats({torch.get_autocast_dtype(kind)})
        if quantised_weights.is_quantised(weight):
            product = quantised_weights.make_unit_layer(
                layer, matmul_precision.PROBE_SIZE, self._device
            )
            self.matmul = matmul_precision.measure_format(product, self._device, inputs[0].dtype)
        elif torch.is_autocast_enabled(kind):
            self.matmul = matmul_precision.measure_operand(self._device)
        else:
            self.matmul = matmul_precision.measure_operand(
                self._device, inputs[0].dtype, weight.dtype
            )

    def __torch_dispatch__(
        self,
        function: Any,  # noqa: ANN401 -- an operator of torch
        _types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> object:
        name = function.overloadpacket.__name__
        if name.startswith(_ATTENTION_PREFIX):
            self.attention_kernel = name.removeprefix(_ATTENTION_PREFIX).replace("_", " ")
        return function(*args, **(kwargs or {}))
