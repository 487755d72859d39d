"""Find the weights of a loaded model, freeze what is not trained, and name the rest for peft."""

from collections.abc import Iterator, Sequence
from typing import Any

from peft import PeftModel
from peft.utils.other import AuxiliaryTrainingWrapper, TrainableTokensWrapper
from torch import nn
from transformers import PreTrainedModel

from studio.errors import TrainingError
from studio.recipe.adapters import Adapter
from studio.training.models import heads
from studio.weights import image_text
from studio.weights.trained_weights import ModelWeight, TrainedPart


def freeze_rest(model: PreTrainedModel, part: TrainedPart) -> None:
    """Freeze every weight of a model that is neither in the part nor in a head for scores.

    Raises:
        TrainingError: the model has no such part.

    """
    if part.is_everything:
        return
    weights = model_weights(model)
    if problem := part.find_problem(weights):
        raise TrainingError("conflict", problem, hint="Choose other weights to train.")
    chosen = {weight.path for weight in part.select(weights)}
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in chosen or heads.is_part(name, model.config))


def peft_extras(
    model: PreTrainedModel | PeftModel, adapter: Adapter, tokens: Sequence[int] = ()
) -> dict[str, Any]:
    """Return the arguments of a peft config that train a part of the model next to an adapter.

    Of `tokens`, the rows are trained in tables that are not trained as a whole.

    Raises:
        TrainingError: the model has no such part, or peft cannot train it.

    """
    part = adapter.trained
    if part.is_nothing and not tokens:
        return {}
    if isinstance(model, PeftModel):
        model = model.get_base_model()
    elif problem := part.find_adapter_problem(model_weights(model), can_tie=adapter.can_tie):
        raise TrainingError("conflict", problem, hint="Choose what else is trained.")
    names = {path.rpartition(".")[2] for path in _module_paths(model, part)}
    tables = _token_tables(model)
    is_tied = len({id(weight) for weight in tables.values()}) < len(tables)
    rows = {name: [*tokens] for name in tables if name not in names and not part.has_embeddings}
    if is_tied:
        # Peft trains the rows of all layers that share a table as one.
        rows = dict([*rows.items()][:1])
    ties = is_tied and (part.has_embeddings or bool(tokens))
    return {
        "modules_to_save": sorted(names) or None,
        **({"ensure_weight_tying": True} if ties else {}),
        **({"trainable_token_indices": rows} if tokens and rows else {}),
    }


def _token_tables(model: PreTrainedModel) -> dict[str, nn.Parameter]:
    """Return the weights with a row for each token by the names of their layers, input first."""
    layers = (model.get_input_embeddings(), model.get_output_embeddings())
    paths = {id(module): path for path, module in model.named_modules()}
    return {
        paths[id(layer)].rpartition(".")[2]: original_layer(layer).weight
        for layer in layers
        if layer is not None
    }


def original_layer(layer: nn.Module) -> Any:  # noqa: ANN401 -- layers have no common type
    """Return the layer that peft has wrapped to train its rows, or the layer itself."""
    return layer.original_module if isinstance(layer, TrainableTokensWrapper) else layer


def _module_paths(model: PreTrainedModel, part: TrainedPart) -> Iterator[str]:
    """Yield the modules that hold the weights of a part; a module that peft wraps is one."""
    embedding, output = model.get_input_embeddings(), model.get_output_embeddings()
    inside = "\0"
    for path, module in model.named_modules():
        if path.startswith(inside):
            continue
        if isinstance(module, AuxiliaryTrainingWrapper):
            inside = f"{path}."
        if module is embedding or module is output:
            if part.has_embeddings or (module is output and part.has_output):
                yield path
        elif part.has_norms and _is_norm(path, module):
            yield path


def _is_norm(path: str, module: nn.Module) -> bool:
    """Whether a module is a norm with weights of its own."""
    has_weights = isinstance(module, AuxiliaryTrainingWrapper) or [
        *module.parameters(recurse=False)
    ]
    return bool(has_weights) and ModelWeight(path, 0).is_norm


def model_weights(model: PreTrainedModel) -> list[ModelWeight]:
    """Return the weights of a model in order; one that two layers share is there once."""
    embedding, output = (
        {id(weight) for weight in layer.parameters()} if layer is not None else set()
        for layer in (model.get_input_embeddings(), model.get_output_embeddings())
    )
    return [
        ModelWeight(name, weight.numel(), id(weight) in embedding, id(weight) in output)
        for name, weight in model.named_parameters()
        if image_text.part_of(name, model.config.model_type) is None
    ]
