"""Find the linear layers of a loaded model, and name those that an adapter covers for peft."""

from collections.abc import Sequence
from typing import Any

from peft import PeftModel
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from studio.errors import TrainingError
from studio.training.models import heads
from studio.weights import family_limits
from studio.weights.adapter_targets import AdapterTargets, LinearLayer

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
    if problem := targets.find_problem(layers):
        raise TrainingError("conflict", problem, hint="Choose other target modules.")
    chosen = targets.select(layers)
    if targets.last_layers is None:
        return {"target_modules": _shortest_names(chosen, layers)}
    numbers = sorted({layer.number for layer in chosen if layer.number is not None})
    beside = [layer for layer in layers if layer.number in numbers]
    return {"target_modules": _shortest_names(chosen, beside), "layers_to_transform": numbers}


def linear_layers(model: PreTrainedModel | PeftModel) -> list[LinearLayer]:
    """Return the linear layers of a model, except its output layer, in order."""
    base: Any = model.get_base_model() if isinstance(model, PeftModel) else model
    skipped = family_limits.NO_ADAPTER_LAYERS.get(base.config.model_type, ()) + heads.NAMES
    found: list[LinearLayer] = []
    inside = "\0"
    for path, module in base.named_modules():
        if path.startswith(inside) or module is base.get_output_embeddings():
            continue
        if isinstance(module, BaseTunerLayer):
            inside = f"{path}."  # the parts of an adapter's layer
        elif not isinstance(module, nn.Linear | Conv1D):
            continue
        if path.rpartition(".")[2] not in skipped:
            found.append(LinearLayer(path))
    return found


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
