"""The torch side of continued pre-training."""

import math

from transformers.trainer_utils import EvalLoopOutput

from studio.errors import TrainingError
from studio.methods.cpt import METHOD, PERPLEXITY, CPTRecipe
from studio.metrics import EVAL_LOSS
from studio.training.data.tokenisation import tokenise
from studio.training.job import TrainingJob
from studio.training.monitoring import early_stopping
from studio.training.next_token import NextTokenTrainer
from studio.training.run_trainer import build_arguments

__all__ = ["build", "tokenise"]

_MAX_EXPONENT = 700
"""From about 709 on, the exponential overflows a float64."""


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
    return TextTrainer(job, args, early_stopping.callbacks(recipe))


class TextTrainer(NextTokenTrainer):
    """Reports perplexity."""

    def evaluation_loop(self, *args: object, **kwargs: object) -> EvalLoopOutput:
        """Add the perplexity of the validation texts: the exponential of their loss."""
        output = super().evaluation_loop(*args, **kwargs)
        loss = output.metrics[EVAL_LOSS.key]
        output.metrics[PERPLEXITY.key] = math.inf if loss > _MAX_EXPONENT else math.exp(loss)
        return output
