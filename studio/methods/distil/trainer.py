"""The torch side of distillation."""

from trl.trainer import utils as upstream

from studio.errors import TrainingError
from studio.methods.distil import METHOD, DistilRecipe
from studio.methods.distil.comparison import TeacherTrainer
from studio.methods.distil.on_policy import OnPolicyTrainer
from studio.training.data.tokenisation import tokenise
from studio.training.job import TrainingJob
from studio.training.monitoring import early_stopping
from studio.training.rollouts.generation import SamplingSettings
from studio.training.run_trainer import build_arguments

__all__ = ["build", "tokenise"]


def build(recipe: DistilRecipe, job: TrainingJob) -> TeacherTrainer:
    """Build the trainer of a run.

    Raises:
        TrainingError: the student writes its answers, and a row has no prompt.

    """
    assert job.teacher is not None  # noqa: S101 -- a recipe of this method has one
    args = build_arguments(recipe, job, METHOD.objective)
    kind = OnPolicyTrainer if recipe.answer_tokens else TeacherTrainer
    trainer = kind(job, args, early_stopping.callbacks(recipe))
    trainer.recipe, trainer.teacher = recipe, job.teacher.to(args.device)
    upstream.add_fused_lm_head(trainer.teacher)
    if isinstance(trainer, OnPolicyTrainer):
        _refuse_texts(job)
        trainer.sampling = _sampling(recipe, job)
    return trainer


def _sampling(recipe: DistilRecipe, job: TrainingJob) -> SamplingSettings:
    return SamplingSettings(
        max_new_tokens=recipe.distillation.max_new_tokens,
        temperature=recipe.distillation.sampling_temperature,
        batch_size=recipe.answers_at_once,
        stop_tokens=job.stop_tokens,
        pad_token_id=job.tokenizer.pad_token_id,
    )


def _refuse_texts(job: TrainingJob) -> None:
    for row in job.train.rows:
        if row.text is not None:
            raise TrainingError(
                "bad_row",
                f"{row.location} is plain text, which has no prompt that the student could answer.",
                hint="Choose a dataset of conversations, or learn on the given answers.",
            )
