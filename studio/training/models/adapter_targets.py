"""Find the linear layers of a loaded model, and name those that an adapter covers for peft."""

from collections.abc import Sequence
from typing import Any

from peft import PeftModel
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from studio.errors import TrainingError
from studio.training.models import heads, vision_parts
from studio.weights import family_limits
from studio.weights.adapter_targets import AdapterTargets, LinearLayer, find_unrotatable

_MAX_SUFFIX = 3
"""Parts of a module's name that peft is given at most, before it gets whole names."""


def peft_targets(model: PreTrainedModel | PeftModel, targets: AdapterTargets) -> dict[str, Any]:
    """Return the arguments of a peft config that name what an adapter covers.

    Raises:
        TrainingError: the model has no such layers.

    """
    if targets.is_everything:
        return {"target_modules": targets.group}
    layers = linear_layers(model)
    chosen = _choose(layers, targets)
    if targets.last_layers is None:
        return {"target_modules": _shortest_names(chosen, layers)}
    numbers = sorted({layer.number for layer in chosen if layer.number is not None})
    beside = [layer for layer in layers if layer.number in numbers]
    return {"target_modules": _shortest_names(chosen, beside), "layers_to_transform": numbers}


def scaling_targets(model: PreTrainedModel | PeftModel, targets: AdapterTargets) -> dict[str, Any]:
    """Return the arguments of peft's config for IA3: what it covers, and where it scales inputs.

    Peft knows the layers of a dozen families only, so all are named. It scales the inputs of the
    MLP's layer back to the model's width, and the outputs of all others
    (https://arxiv.org/abs/2205.05638, section 3.3).

    Raises:
        TrainingError: the model has no such layers.

    """
    layers = linear_layers(model)
    chosen = _choose(layers, targets)
    names = [
        # Peft's config cannot choose layers by number, so they have their whole names.
        [layer.path for layer in part] if targets.last_layers else _shortest_names(part, layers)
        for part in (
            [layer for layer in chosen if not layer.narrows],
            [layer for layer in chosen if layer.narrows],
        )
    ]
    return {"target_modules": names[0] + names[1], "feedforward_modules": names[1]}


def refuse_unrotatable(
    model: PreTrainedModel | PeftModel, targets: AdapterTargets, block_size: int
) -> None:
    """Refuse layers that peft's OFT does not support, or whose inputs it would block otherwise.

    Raises:
        TrainingError: it is a transposed layer, or the block size does not divide its inputs.

    """
    chosen = _choose(linear_layers(model), targets)
    base: Any = model.get_base_model() if isinstance(model, PeftModel) else model
    transposed = [one.path for one in chosen if isinstance(base.get_submodule(one.path), Conv1D)]
    problem = find_unrotatable(chosen, block_size)
    if transposed:
        problem = f"OFT does not support transposed layers, such as {transposed[0]}."
    if problem:
        raise TrainingError("conflict", problem, hint="Choose a LoRA adapter.")


def _choose(layers: Sequence[LinearLayer], targets: AdapterTargets) -> list[LinearLayer]:
    if problem := targets.find_problem(layers):
        raise TrainingError("conflict", problem, hint="Choose other target modules.")
    return targets.select(layers)


def linear_layers(model: PreTrainedModel | PeftModel) -> list[LinearLayer]:
    """Return the linear layers of a model, except those of its head, in order."""
    base: Any = model.get_base_model() if isinstance(model, PeftModel) else model
    skipped = family_limits.NO_ADAPTER_LAYERS.get(base.config.model_type, ())
    found: list[LinearLayer] = []
    inside = "\0"
    for path, module in base.named_modules():
        if path.startswith(inside) or module is base.get_output_embeddings():
            continue
        if isinstance(module, BaseTunerLayer):
            inside = f"{path}."  # the parts of an adapter's layer
        elif not isinstance(module, nn.Linear | Conv1D):
            continue
        is_head = heads.is_part(f"{path}.", base.config) or vision_parts.is_frozen(base, path)
        if path.rpartition(".")[2] not in skipped and not is_head:
            found.append(LinearLayer(path, *_sides(module)))
    return found


def _sides(module: Any) -> tuple[int, int]:  # noqa: ANN401 -- peft's layers have no common type
    """Return the outputs and inputs of a linear layer."""
    layer = module.get_base_layer() if isinstance(module, BaseTunerLayer) else module
    if isinstance(layer, Conv1D):
        inputs, outputs = layer.weight.shape
        return outputs, inputs
    return layer.out_features, layer.in_features


def _shortest_names(chosen: Sequence[LinearLayer], layers: Sequence[LinearLayer]) -> list[str]:
    """Return the shortest ends of module names that only the chosen layers have."""
    paths = {layer.path for layer in chosen}
    for length in range(1, _MAX_SUFFIX + 1):
        names = {".".join(path.split(".")[-length:]) for path in paths}
        matched = {layer.path for layer in layers if _ends_with(layer.path, names)}
        if matched == paths:
            return sorted(names)
    return sorted(paths)


def _ends_with(path: str, names: set[str]) -> bool:
    return path in names or any(path.endswith(f".{name}") for name in names)
