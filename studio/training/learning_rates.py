"""Learning rates that differ between the weights of a run, such as LoRA+."""

from collections.abc import Set as AbstractSet

from torch import nn
from torch.optim import Optimizer
from transformers import PreTrainedModel

_OUTER = ".lora_B."


def separate(optimizer: Optimizer, ids: AbstractSet[int], **changes: object) -> bool:
    """Move the weights with these ids into groups of their own, which differ in some values.

    `lr` is the learning rate. Return whether there are any such weights.
    """
    is_found = False
    for group in list(optimizer.param_groups):
        chosen = [weight for weight in group["params"] if id(weight) in ids]
        if chosen:
            is_found = True
            group["params"] = [weight for weight in group["params"] if id(weight) not in ids]
            optimizer.add_param_group({**group, "params": chosen, **changes})
    return is_found


def embedding_ids(model: PreTrainedModel) -> set[int]:
    """Return the ids of the input and output embeddings' weights; they may be the same tensor."""
    layers = (model.get_input_embeddings(), model.get_output_embeddings())
    return {id(weight) for layer in layers if layer is not None for weight in layer.parameters()}


def outer_adapter_ids(model: nn.Module) -> set[int]:
    """Return the ids of the adapter's second matrices, which start at zero in plain LoRA."""
    return {id(weight) for name, weight in model.named_parameters() if _OUTER in name}
