"""Find the weights of a loaded model, and freeze those that a full fine-tune does not train."""

from transformers import PreTrainedModel

from studio.errors import TrainingError
from studio.weights.trained_weights import ModelWeight, TrainedPart


def freeze_rest(model: PreTrainedModel, part: TrainedPart) -> None:
    """Freeze every weight of a model that is not in the part.

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
        parameter.requires_grad_(name in chosen)


def model_weights(model: PreTrainedModel) -> list[ModelWeight]:
    """Return the weights of a model in order; one that two layers share is there once."""
    embedding, output = (
        {id(weight) for weight in layer.parameters()} if layer is not None else set()
        for layer in (model.get_input_embeddings(), model.get_output_embeddings())
    )
    return [
        ModelWeight(name, weight.numel(), id(weight) in embedding, id(weight) in output)
        for name, weight in model.named_parameters()
    ]
