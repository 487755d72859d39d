"""The torch side of sequence to sequence."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Trainer
from transformers.trainer_utils import EvalLoopOutput

from studio.errors import TrainingError
from studio.methods.seq2seq import METHOD, Seq2SeqRecipe
from studio.methods.seq2seq.answers import judge
from studio.training.data.labels import IGNORE_INDEX
from studio.training.data.prompt_answer import split_row
from studio.training.data.prompt_answer_batches import (
    PromptAnswerCollator,
    decoder_inputs,
    tokenise,
)
from studio.training.evaluation.sample_answers import AnswerSampler
from studio.training.job import TrainingJob
from studio.training.memory.dry_run import BatchShape
from studio.training.models.eval_context import keep_forward_wrappers
from studio.training.monitoring import early_stopping
from studio.training.run_trainer import RunTrainer, build_arguments

__all__ = ["build", "tokenise"]

Batch = dict[str, Any]

COLUMNS = ("input_ids", "labels")
MAX_ANSWER_RATIO = 2
"""How many times longer than the longest expected answer a judged one may get."""


def build(recipe: Seq2SeqRecipe, job: TrainingJob) -> "PairTrainer":
    """Build the trainer of a run."""
    _refuse_beyond_context(job)
    args = build_arguments(recipe, job, METHOD.objective)
    trainer = PairTrainer(job, args, early_stopping.callbacks(recipe))
    trainer.label_smoothing = recipe.rewriting.label_smoothing
    if recipe.rewriting.judged_answers:
        trainer.judge = _make_judge(recipe, job, trainer)
    return trainer


def _refuse_beyond_context(job: TrainingJob) -> None:
    """Refuse texts that are longer than the positions a model has learned; T5 has no limit."""
    context = getattr(job.model.config, "max_position_embeddings", None)
    parts = (job.train, job.validation)
    longest = max(max(part.longest, part.longest_answer) for part in parts)
    if context is not None and longest > context:
        raise TrainingError(
            "conflict",
            f"The longest text has {longest:,} tokens, and this model reads and writes at most "
            f"{context:,}.",
            hint=f'Set "Max sequence length" to {context:,} or less.',
        )


def _make_judge(
    recipe: Seq2SeqRecipe, job: TrainingJob, trainer: "PairTrainer"
) -> Callable[[], dict[str, float]]:
    """Return a function that answers the first validation prompts and judges the answers."""
    count, max_length = recipe.rewriting.judged_answers, trainer.args.max_length
    rows = job.validation.rows[:count]
    longest = max(len(row["labels"]) for row in trainer.eval_dataset[:count])
    most = min(MAX_ANSWER_RATIO * longest, max_length)
    sampler = AnswerSampler(
        rows, None, job.tokenizer, most, max_length=max_length, arguments=job.generation
    )
    expected = [split_row(row)[1] for row in rows]

    def judge_answers() -> dict[str, float]:
        with keep_forward_wrappers(trainer.model), job.answer_autocast(trainer.args.device):
            model = trainer.accelerator.unwrap_model(trainer.model, keep_fp32_wrapper=False)
            return judge(sampler.write(model), expected)

    return judge_answers


def answer_losses(logits: Tensor, targets: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """Return the loss of each token without and with label smoothing: shape (tokens,).

    Smoothed targets give a part of the probability to all tokens alike (arXiv:1512.00567, section
    7), as transformers' `LabelSmoother` does. `logits` has the shape (tokens, vocabulary).
    """
    log_probs = logits.float().log_softmax(dim=-1)
    losses = -log_probs.gather(1, targets[:, None]).squeeze(1)
    if not smoothing:
        return losses, losses
    return losses, (1 - smoothing) * losses - smoothing * log_probs.mean(dim=-1)


class PairTrainer(RunTrainer, Trainer):  # type: ignore[misc] # upstream is untyped
    """Learns the answer to each prompt; every token of an answer counts equally."""

    collator_type = PromptAnswerCollator
    label_smoothing = 0.0
    judge: Callable[[], dict[str, float]] | None = None

    def compute_loss(
        self,
        model: nn.Module,
        inputs: Batch,
        return_outputs: bool = False,  # noqa: FBT001, FBT002, ARG002 -- upstream's signature
        num_items_in_batch: Tensor | int | None = None,
    ) -> Tensor:
        """Return the mean loss over the answer tokens of the whole accumulated batch."""
        labels, mask = inputs["labels"], inputs["attention_mask"]
        logits = model(
            input_ids=inputs["input_ids"],
            attention_mask=mask,
            decoder_input_ids=decoder_inputs(self.model, labels),
            use_cache=False,
        ).logits
        is_answer = labels != IGNORE_INDEX
        scored, targets = logits[is_answer], labels[is_answer]
        smoothing = self.label_smoothing if model.training else 0.0
        losses, smoothed = answer_losses(scored, targets, smoothing)
        trained = is_answer.sum()
        correct = (scored.detach().argmax(dim=-1) == targets).sum()
        self._losses.add(losses.sum(), trained, correct, mask.sum() + trained)
        count = trained if num_items_in_batch is None else num_items_in_batch
        mean: Tensor = smoothed.sum() / count
        return mean

    def prediction_step(
        self,
        model: nn.Module,
        inputs: Batch,
        _prediction_loss_only: bool,  # noqa: FBT001 -- upstream's signature
        ignore_keys: object = None,  # noqa: ARG002 -- the same
    ) -> tuple[Tensor, None, None]:
        """Return the loss alone: the accumulator counts the rest."""
        with torch.no_grad(), self.compute_loss_context_manager():
            loss = self.compute_loss(model, self._prepare_inputs(inputs))
        return loss.detach(), None, None

    def evaluation_loop(self, *args: object, **kwargs: object) -> EvalLoopOutput:
        """Also judge answers, which the model writes one token at a time."""
        output = super().evaluation_loop(*args, **kwargs)
        if self.judge is not None:
            output.metrics.update(self.judge())
        return output

    def evaluation_metrics(self, sums: Mapping[str, float]) -> dict[str, float]:
        return {
            "eval_loss": sums["mean_loss"],
            "eval_mean_token_accuracy": sums["mean_token_accuracy"],
        }

    def dummy_batch(self, shape: BatchShape, device: torch.device) -> Batch:
        """Return a batch in which every prompt and every answer is as long as the longest."""
        batch: Batch = shape.tensors(device)
        answers = (shape.examples, shape.answer_length)
        return batch | {"labels": torch.zeros(answers, dtype=torch.long, device=device)}

    def _get_num_items_in_batch(self, batches: Sequence[Batch], device: torch.device) -> Tensor:
        """Return the number of answer tokens in an accumulated batch: none is left out."""
        counts = [(batch["labels"] != IGNORE_INDEX).sum() for batch in batches]
        return torch.stack(counts).sum().to(device)

    def _set_signature_columns_if_needed(self) -> None:
        """Keep all columns: upstream removes what the model does not read."""
        self._signature_columns = list(COLUMNS)
