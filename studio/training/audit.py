"""The number formats of a training step: those planned, and those found by measuring.

A plan is made of the mode's row, the adapter and the family, before a model is loaded. An audit
looks at the model, at the optimizer, and at what a small forward pass computes in.
"""

import copy
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedConfig, Trainer
from transformers.pytorch_utils import Conv1D

from studio.recipe.adapters import Lora
from studio.recipe.base import Recipe
from studio.recipe.formats import DType
from studio.recipe.precision import PRECISIONS
from studio.training import float8, matmuls, models
from studio.training.undisturbed import undisturbed

NONE = "none"
_PROBE_TOKENS = 8
_OPTIMIZERS = {"adafactor": "Adafactor", "sgd": "SGD"}
"""What the recipe's optimizers are called, where that is not AdamW."""

_ATTENTION = "_scaled_dot_product_"


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """What a plan and an audit must agree on."""

    weights: str
    """The frozen model's, or where all is trained, all; but for those kept in float32."""
    kept_in_float32: tuple[str, ...]
    """Parts of the model that its family never loads in 16 bits, by a part of their names."""
    trained: str
    gradients: str
    compute: str
    """What comes out of a matrix product."""
    matmul: str
    """What goes into it."""
    autocast: str
    scaler: bool
    optimizer: str
    optimizer_states: str
    master: str
    attention: str

    def differences(self, found: "Numbers") -> str:
        """Name what is otherwise than in these numbers, in words."""
        wanted, there = asdict(self), asdict(found)
        return "; ".join(
            f"{name.replace('_', ' ')} should be {_word(wanted[name])} and is {_word(there[name])}"
            for name in wanted
            if wanted[name] != there[name]
        )


def plan(recipe: Recipe, weights: DType, config: PreTrainedConfig) -> Numbers:
    """Say what must be, from the mode's row and from what is read of the model before it loads."""
    mode = PRECISIONS[recipe.precision]
    lora = isinstance(recipe.adapter, Lora)
    optim = recipe.optimisation.optim
    trained = "float32" if lora else mode.gradients
    return Numbers(
        weights=weights,
        kept_in_float32=models.kept_in_float32(config, weights),
        trained="float32" if lora else mode.weights,
        gradients=trained,
        compute=mode.compute,
        matmul=mode.matmul,
        autocast=mode.autocast or NONE,
        scaler=mode.scaler,
        optimizer=_OPTIMIZERS.get(optim, mode.optimizer),
        optimizer_states=NONE if optim == "sgd" else mode.optimizer_states,
        master=mode.master or NONE,
        attention=models.attention(config),
    )


def audit(trainer: Trainer, planned: Numbers) -> tuple[Numbers, dict[str, Any]]:
    """Look at the weights, at the optimizer, and at what a small forward pass computes in."""
    everything = [p for p in trainer.model.parameters() if p.is_floating_point()]
    wide = kept(trainer.model, planned)
    parameters = [p for p in everything if p not in wide]
    trained = [p for p in parameters if p.requires_grad]
    frozen = [p for p in parameters if not p.requires_grad]
    with float8.watched(trainer.model, trainer.mode) as readings:
        seen = _Seen.by(trainer.model_wrapped, trainer.args.device)
    states, master = states_of(_after_a_step(trainer.optimizer, wide), wide)
    scaler = trainer.accelerator.scaler
    numbers = Numbers(
        weights=names(p.dtype for p in frozen or trained),
        kept_in_float32=_kept_indeed(trainer.model, planned),
        trained=names(p.dtype for p in trained),
        # As its weight, says torch; the first step will show.
        gradients=names(p.dtype for p in trained),
        compute=seen.compute,
        matmul=readings.matmul or seen.matmul,
        autocast=seen.autocast,
        scaler=scaler is not None and scaler.is_enabled(),
        optimizer=_title(trainer.optimizer),
        optimizer_states=states,
        master=master,
        attention=trainer.model.config._attn_implementation,  # noqa: SLF001 -- no public name
    )
    return numbers, {
        "attention_kernel": seen.attention_kernel,
        "trained_tensors": f"{sum(p.requires_grad for p in everything)}, all in the optimizer",
        **readings.told,
        "formats": _by_layer(trainer.model),
    }


def orphans(trainer: Trainer) -> list[str]:
    """Return the names of trainable weights that no optimizer would ever move."""
    held = {id(p) for group in trainer.optimizer.param_groups for p in group["params"]}
    named = trainer.model.named_parameters()
    return [name for name, p in named if p.requires_grad and id(p) not in held]


def strays(trainer: Trainer, planned: Numbers) -> list[str]:
    """Return the weights of a format that no plan speaks of, each with its format."""
    usual, wide = {planned.weights, planned.trained}, kept(trainer.model, planned)
    return [
        f"{name} is {names({p.dtype})}"
        for name, p in trainer.model.named_parameters()
        if p.is_floating_point() and names({p.dtype}) not in ({"float32"} if p in wide else usual)
    ]


def kept(model: nn.Module, planned: Numbers) -> set[Tensor]:
    """Return the weights that the plan leaves in float32 whatever the others are."""
    named = model.named_parameters()
    return {p for name, p in named if any(_is_in(name, part) for part in planned.kept_in_float32)}


def states_of(
    optimizer: torch.optim.Optimizer, without: AbstractSet[Tensor] = frozenset()
) -> tuple[str, str]:
    """Return the formats of what an optimizer keeps: its states, and its copy of the weights."""
    found: dict[bool, set[torch.dtype]] = {True: set(), False: set()}
    for state in (state for weight, state in optimizer.state.items() if weight not in without):
        for name, value in state.items():
            if isinstance(value, Tensor) and value.is_floating_point() and value.dim():
                found[name == "master"].add(value.dtype)
    return names(found[False]), names(found[True])


def names(formats: Iterable[torch.dtype]) -> str:
    found = {str(dtype).removeprefix("torch.") for dtype in formats}
    return " and ".join(sorted(found)) or NONE


def _word(value: object) -> str:
    return " and ".join(value) or NONE if isinstance(value, tuple) else str(value)


def _is_in(name: str, part: str) -> bool:
    """Whether upstream means this weight by a part of its name; an adapter has put a word in."""
    return bool(re.search(part.replace("*", ".*"), name.replace(".base_layer", "")))


def _kept_indeed(model: nn.Module, planned: Numbers) -> tuple[str, ...]:
    """Return those parts that are to be kept in float32 of which nothing is otherwise."""
    held = [*model.named_parameters(), *model.named_buffers()]
    narrow = [name for name, one in held if one.is_floating_point() and one.element_size() < 4]  # noqa: PLR2004 -- bytes
    return tuple(
        part for part in planned.kept_in_float32 if not any(_is_in(name, part) for name in narrow)
    )


def _after_a_step(
    optimizer: Any,  # noqa: ANN401 -- accelerate's wrapper is untyped
    without: AbstractSet[Tensor],
) -> torch.optim.Optimizer:
    """Return a copy of the optimizer that has made a step with a small weight of each format."""
    twin: torch.optim.Optimizer = copy.copy(getattr(optimizer, "optimizer", optimizer))
    groups = twin.param_groups
    params = (p for group in groups for p in group["params"] if p not in without)
    formats = {(p.dtype, p.device) for p in params}
    weights = [torch.zeros(2, 2, dtype=dtype, device=device) for dtype, device in formats]
    for weight in weights:
        weight.requires_grad_().grad = torch.zeros_like(weight)
    twin.state = defaultdict(dict)
    twin.param_groups = [{**groups[0], "params": weights}]
    twin.step()
    return twin


def _title(optimizer: Any) -> str:  # noqa: ANN401 -- accelerate's wrapper is untyped
    inner = getattr(optimizer, "optimizer", optimizer)
    return getattr(inner, "title", type(inner).__name__)


def _by_layer(model: nn.Module) -> dict[str, str]:
    """Return the weights' formats by the kind of layer that holds them."""
    found: dict[str, set[torch.dtype]] = defaultdict(set)
    for path, module in model.named_modules():
        kind = "adapter" if "lora_" in path else type(module).__name__
        found[kind].update(p.dtype for p in module.parameters(recurse=False))
    return {kind: names(formats) for kind, formats in found.items() if formats}


class _Seen(TorchDispatchMode):  # type: ignore[no-untyped-call] # upstream is untyped
    """What a small forward pass shows of the first matrix product, and of attention."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # upstream is untyped
        self.compute = self.matmul = self.autocast = NONE
        self.attention_kernel = "no fused kernel"
        self._device = device

    @classmethod
    def by(cls, model: nn.Module, device: torch.device) -> "_Seen":
        seen = cls(device)
        first = next(m for m in model.modules() if isinstance(m, nn.Linear | Conv1D))
        hook = first.register_forward_hook(seen.look)
        tokens = torch.zeros((2, _PROBE_TOKENS), dtype=torch.long, device=device)
        # Padded like a batch: attention chooses its kernel by that.
        mask = torch.ones_like(tokens)
        mask[1, -1] = 0
        try:
            with undisturbed(model), seen:
                model(input_ids=tokens, attention_mask=mask, use_cache=False)
        finally:
            hook.remove()
        return seen

    def look(self, layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        kind = self._device.type
        weight: Any = layer.weight
        self.compute = names({output.dtype})
        if torch.is_autocast_enabled(kind):
            self.autocast = names({torch.get_autocast_dtype(kind)})
            self.matmul = matmuls.operand(self._device)
        else:
            self.matmul = matmuls.operand(self._device, inputs[0].dtype, weight.dtype)

    def __torch_dispatch__(
        self,
        function: Any,  # noqa: ANN401 -- an operator of torch
        _types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> object:
        name = function.overloadpacket.__name__
        if name.startswith(_ATTENTION):
            self.attention_kernel = name.removeprefix(_ATTENTION).replace("_", " ")
        return function(*args, **(kwargs or {}))
