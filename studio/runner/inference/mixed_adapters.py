"""Batches whose rows are answered by different adapters of one base, or by the base itself.

A LoRA layer adds `B(A(x)) * scaling` of an adapter to what the base's layer gives. The matrices of
all adapters of a batch are laid side by side, so that it needs two products, not two per adapter;
a row keeps what its own adapter makes of it. peft's own way (`adapter_names`) computes the same in
products per adapter. Which layers and adapters are of this form is read from the installed peft:

* Layers whose `forward` calls `LoraLayer._mixed_batch_forward` (peft/tuners/lora/layer.py, bnb.py)
  are. Those of whole parameters, of `nn.MultiheadAttention` and of other adapters are not.
* `LoraLayer.lora_variant` names the adapters that compute something else there, such as DoRA.
* `AuxiliaryTrainingWrapper` (peft/utils/other.py) holds parts that an adapter trains in full, and
  rows of new tokens. They are no sums.
"""

import inspect
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from peft import PeftModel, PeftType
from peft.tuners.lora import LoraLayer
from peft.utils.other import AuxiliaryTrainingWrapper
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

BASE = "__base__"
"""peft's name for a row that no adapter answers."""


@contextmanager
def answering(model: PreTrainedModel | PeftModel, names: Sequence[str]) -> Iterator[None]:
    """Let each row of the batches that the model reads be answered by its adapter, or by the base.

    If all are the same, so are the computations: as without other adapters.
    """
    if not isinstance(model, PeftModel):
        yield
        return
    if len({*names}) == 1 and names[0] != BASE:
        model.set_adapter(names[0])
        yield
        return
    with model.disable_adapter(), ExitStack() as hooks:
        for layer in _lora_layers(model):
            if own := {*names} & {*_adapters(layer)}:
                add = _add_adapters(layer, sorted(own), names)
                hooks.callback(layer.register_forward_hook(add).remove)
        yield


def can_mix(model: PeftModel, name: str) -> bool:
    """Whether an adapter of the model can answer some rows of a batch, and others the rest."""
    if model.peft_type != PeftType.LORA:
        return False
    layers = [layer for layer in _lora_layers(model) if name in _adapters(layer)]
    parts = (part for part in model.modules() if isinstance(part, AuxiliaryTrainingWrapper))
    return (
        not any(name in _adapters(part) for part in parts)
        and all(_adds_product(layer, name) for layer in layers)
        and _all_read_rows(model, layers)
    )


def _add_adapters(
    layer: Any,  # noqa: ANN401 -- peft's layers have no common type
    own: Sequence[str],
    names: Sequence[str],
) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], Tensor]:
    """Return a hook that adds to each row of a layer's output what its adapter makes of the row.

    `own` are the adapters that the layer has. All ranks together are in the middle.
    """
    downs = [layer.lora_A[name].weight for name in own]
    down = torch.cat(downs)
    up = torch.cat([layer.lora_B[name].weight * layer.scaling[name] for name in own], dim=1)
    owners = [name for name, weight in zip(own, downs, strict=True) for _rank in weight]
    foreign = torch.tensor(
        [[[name != owner for owner in owners]] for name in names], device=down.device
    )  # rows, 1, ranks

    def add(_layer: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
        middle = functional.linear(args[0].to(down.dtype), down).masked_fill(foreign, 0)
        return (output + functional.linear(middle, up)).to(output.dtype)

    return add


def _lora_layers(model: PeftModel) -> list[Any]:
    return [module for module in model.modules() if isinstance(module, LoraLayer)]


def _adapters(part: Any) -> Collection[str]:  # noqa: ANN401 -- as above
    names: Collection[str] = part._get_available_adapters()  # noqa: SLF001 -- upstream has no other word
    return names


def _adds_product(layer: Any, name: str) -> bool:  # noqa: ANN401 -- as above
    """Whether an adapter of a layer is a product that is added to the output of each row."""
    called = inspect.unwrap(type(layer).forward).__code__.co_names
    if "_mixed_batch_forward" not in called or name in layer.lora_variant:
        return False
    if name not in layer.lora_A:
        return False
    pair = layer.lora_A[name], layer.lora_B[name]
    return all(
        isinstance(part, nn.Linear)
        and part.bias is None
        # What is no number would spread to the rows of others: 0 times it is none, either.
        and bool(part.weight.isfinite().all())
        for part in pair
    )


def _all_read_rows(model: PeftModel, layers: Sequence[nn.Module]) -> bool:
    """Whether the layers read a batch row by row, as the model does.

    Experts read the tokens of all rows as one list.
    """
    rows, tokens = 2, 3
    shapes: dict[nn.Module, set[tuple[int, ...]]] = {layer: set() for layer in layers}

    def note(layer: nn.Module, args: tuple[Tensor, ...]) -> None:
        shapes[layer].add(tuple(args[0].shape[:-1]) if args else ())

    ids = torch.zeros((rows, tokens), dtype=torch.long, device=model.device)
    with torch.inference_mode(), ExitStack() as hooks:
        for layer in layers:
            hooks.callback(layer.register_forward_pre_hook(note).remove)
        model.get_base_model()(input_ids=ids, attention_mask=torch.ones_like(ids))
    return all(found == {(rows, tokens)} for found in shapes.values())
