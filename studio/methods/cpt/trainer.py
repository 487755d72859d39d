"""The torch side of continued pre-training."""

import math

from torch.optim import Optimizer
from transformers import PreTrainedModel
from transformers.trainer_utils import EvalLoopOutput

from studio.errors import TrainingError
from studio.methods.cpt import METHOD, PERPLEXITY, CPTRecipe
from studio.metrics import EVAL_LOSS
from studio.training import learning_rates
from studio.training.data.tokenisation import tokenise
from studio.training.job import TrainingJob
from studio.training.monitoring import early_stopping
from studio.training.next_token import NextTokenTrainer
from studio.training.run_trainer import build_arguments

__all__ = ["build", "tokenise"]

_MAX_EXPONENT = 700
"""From about 709 on, the exponential overflows a float64."""

_NO_EMBEDDINGS = TrainingError(
    "conflict",
    "The embeddings of this model cannot have their own learning rate here.",
    hint="Leave the embedding learning rate empty.",
)


def build(recipe: CPTRecipe, job: TrainingJob) -> "TextTrainer":
    """Build the trainer of a run.

    Raises:
        TrainingError: a row is not a text.

    """
    for row in (*job.train.rows, *job.validation.rows):
        if row.text is None:
            raise TrainingError(
                "bad_row",
                f"{row.location} is not a text.",
                hint="Choose a dataset of plain text, or learn from answers.",
            )
    args = build_arguments(recipe, job, METHOD.objective)
    trainer = TextTrainer(job, args, early_stopping.callbacks(recipe))
    trainer.embedding_rate = recipe.optimisation.embedding_learning_rate
    return trainer


class TextTrainer(NextTokenTrainer):
    """Reports perplexity, and can train the embeddings at a learning rate of their own."""

    embedding_rate: float | None = None

    def create_optimizer(self, *args: object) -> Optimizer:
        """Put the embeddings into parameter groups with their learning rate.

        Raises:
            TrainingError: the optimizer has no embeddings, as when shards replace them.

        """
        is_new = self.optimizer is None
        optimizer: Optimizer = super().create_optimizer(*args)
        if is_new and self.embedding_rate is not None:
            ids = _embedding_ids(self.model)
            if not learning_rates.separate(optimizer, ids, lr=self.embedding_rate):
                raise _NO_EMBEDDINGS
        return optimizer

    def evaluation_loop(self, *args: object, **kwargs: object) -> EvalLoopOutput:
        """Add the perplexity of the validation texts: the exponential of their loss."""
        output = super().evaluation_loop(*args, **kwargs)
        loss = output.metrics[EVAL_LOSS.key]
        output.metrics[PERPLEXITY.key] = math.inf if loss > _MAX_EXPONENT else math.exp(loss)
        return output


def _embedding_ids(model: PreTrainedModel) -> set[int]:
    """Return the ids of the input and output embeddings' weights; they may be the same tensor."""
    layers = (model.get_input_embeddings(), model.get_output_embeddings())
    return {id(weight) for layer in layers if layer is not None for weight in layer.parameters()}
