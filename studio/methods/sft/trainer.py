"""The torch side of supervised fine-tuning."""

from studio.methods.sft import METHOD, SFTRecipe
from studio.training.data.tokenisation import tokenise
from studio.training.job import TrainingJob
from studio.training.monitoring import early_stopping
from studio.training.next_token import NextTokenTrainer
from studio.training.run_trainer import build_arguments

__all__ = ["build", "tokenise"]


def build(recipe: SFTRecipe, job: TrainingJob) -> NextTokenTrainer:
    """Build the trainer of a run."""
    args = build_arguments(recipe, job, METHOD.objective)
    return NextTokenTrainer(job, args, early_stopping.callbacks(recipe))
