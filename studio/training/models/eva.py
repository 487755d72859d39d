"""Adapters whose first matrices start as what the training data varies in (EVA).

The rows of a layer's first matrix are the strongest directions of the layer's inputs on the first
training rows; the second matrix is zero, so that the model starts unchanged
(https://arxiv.org/abs/2410.07170, without its redistribution of ranks: peft's `rho` of 1). Peft's
own initialisation repeats its data until every direction has settled, which may never happen; this
one reads a fixed number of batches, and updates the directions by an incremental SVD.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from peft import PeftModel
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from studio.training.models.eval_context import evaluation_mode

BATCHES = 8
_TOKENS = 256
"""Tokens of a batch that are read at least, if it has as many."""
_SPARE = 4
"""Directions that are followed, for each that is wanted, while batches are read."""

_ADAPTER = "default"  # peft's name for the trained adapter
_INPUTS = (
    *("input_ids", "attention_mask", "position_ids"),
    *("pixel_values", "image_grid_thw", "mm_token_type_ids"),
)


class Directions:
    """The strongest directions of a stream of vectors, by an incremental SVD without a mean."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._rows: Tensor | None = None

    def add(self, vectors: Tensor) -> None:
        """Add vectors, one per row."""
        rows = vectors if self._rows is None else torch.cat([self._rows, vectors])
        _left, values, right = torch.linalg.svd(rows, full_matrices=False)
        self._rows = (values[:, None] * right)[: _SPARE * self._count]

    def read(self) -> Tensor:
        """Return the directions found, strongest first, each of length 1."""
        if self._rows is None:
            return torch.empty(0, 0)
        rows = self._rows[: self._count]
        norms = rows.norm(dim=1, keepdim=True)
        is_found = norms[:, 0] > norms.max() * torch.finfo(rows.dtype).eps * len(norms)
        directions: Tensor = rows[is_found] / norms[is_found]
        return directions


@torch.no_grad()
def initialise(model: PeftModel, batches: Sequence[Mapping[str, Tensor]]) -> None:
    """Start the first matrices of an adapter with the directions of their layers' inputs.

    A layer with fewer directions than ranks keeps the start of plain LoRA for the others. Nothing
    is drawn at random.
    """
    layers: list[Any] = [part for part in model.modules() if isinstance(part, LoraLayer)]
    if not layers or isinstance(_first_matrix(layers[0]), FakeTensor):
        return
    recorder = _Recorder(layers)
    base: Any = model.get_base_model()
    try:
        with evaluation_mode(model), model.disable_adapter():
            for batch in batches:
                recorder.mask = _token_mask(batch, max(_TOKENS, _SPARE * recorder.most))
                base.base_model(**{k: batch[k] for k in _INPUTS if k in batch}, use_cache=False)
                recorder.last = None
    finally:
        recorder.remove()
    for layer in layers:
        weight, found = _first_matrix(layer), recorder.directions[layer].read()
        weight[: len(found)] = found.to(weight)


class _Recorder:
    """Reads the inputs of adapters' layers; layers that read the same tensor share the result."""

    def __init__(self, layers: Sequence[Any]) -> None:
        self.mask = torch.empty(0)
        self.last: Tensor | None = None
        self.most = max(len(_first_matrix(layer)) for layer in layers)
        self.directions: dict[nn.Module, Directions] = {}
        self._reader: nn.Module | None = None
        self._hooks = [layer.register_forward_pre_hook(self._record) for layer in layers]

    def remove(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def _record(self, layer: Any, inputs: tuple[Tensor, ...]) -> None:  # noqa: ANN401 -- peft's layers have no common type
        (hidden,) = inputs
        if hidden is self.last and self._reader is not None:
            self.directions[layer] = self.directions[self._reader]
            return
        self.last, self._reader = hidden, layer
        if layer not in self.directions:
            self.directions[layer] = Directions(len(_first_matrix(layer)))
        self.directions[layer].add(hidden[self.mask].float())


def _first_matrix(layer: Any) -> Tensor:  # noqa: ANN401 -- the same
    weight: Tensor = layer.lora_A[_ADAPTER].weight.data
    return weight


def _token_mask(batch: Mapping[str, Tensor], most: int) -> Tensor:
    """Return a mask of trained tokens, evenly spread if there are more than `most`."""
    mask = batch["labels"] >= 0
    chosen = mask.flatten().nonzero()[:, 0]
    if len(chosen) > most:
        chosen = chosen[torch.linspace(0, len(chosen) - 1, most).long().to(chosen.device)]
    spread = torch.zeros_like(mask).flatten()
    spread[chosen] = True
    return spread.view_as(mask)
