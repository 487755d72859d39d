"""The torch side of regression."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import huber_loss, l1_loss, mse_loss
from transformers import PreTrainedTokenizerBase
from trl.trainer.utils import disable_dropout_in_model

from studio.errors import TrainingError
from studio.intake.row_formats.message_formats import is_number
from studio.methods.regress import METHOD, RegressRecipe
from studio.methods.regress.counting import NumberAccumulator
from studio.protocols.number_reports import NUMBER_REPORTS, NumberReport, TargetScore
from studio.training.data.chat_templates import ChatTemplate
from studio.training.data.rows import TrainingRow
from studio.training.data.text_batches import COLUMNS, TargetCollator, tokenise_prompts
from studio.training.data.tokenisation import Examples
from studio.training.head_trainer import Batch, HeadTrainer
from studio.training.job import TrainingJob
from studio.training.memory.dry_run import BatchShape
from studio.training.models.heads import Head
from studio.training.monitoring import early_stopping
from studio.training.run_trainer import build_arguments

UNNAMED = "number"
"""The name of a number that is just the last answer."""
_LOSSES: dict[str, Callable[..., Tensor]] = {"mse": mse_loss, "mae": l1_loss, "huber": huber_loss}


def choose_head(rows: Sequence[TrainingRow]) -> Head:
    """Return the head of a regression model: one score per number.

    Raises:
        TrainingError: a row has no numbers, or others than the first.

    """
    names = tuple(numbers_of(rows[0]))
    for row in rows:
        if tuple(numbers_of(row)) != names:
            raise TrainingError(
                "bad_row",
                f"{row.location} has other numbers than the first.",
                hint="Choose a dataset whose rows all have the same numbers.",
            )
    return Head(names, "regression")


def numbers_of(row: TrainingRow) -> Mapping[str, float]:
    """Return the numbers of a row by name: those beside its last answer, or that answer.

    Raises:
        TrainingError: it has none.

    """
    last = row.messages[-1] if row.messages else {}
    answer = str(last.get("content", "")).strip()
    if last.get("role") == "assistant" and len(row.messages) > 1:
        if row.numbers:
            return row.numbers
        if is_number(answer):
            return {UNNAMED: float(answer)}
    raise TrainingError(
        "bad_row",
        f"{row.location} has no number.",
        hint="Choose a dataset of texts and numbers: the number is the last answer.",
    )


def tokenise(
    rows: Sequence[TrainingRow],
    template: ChatTemplate | None,
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
) -> Examples:
    """Tokenise what comes before the numbers, as a prompt; cut it at the end.

    Raises:
        TrainingError: a row has no numbers, or the chat template cannot render it.

    """
    for row in rows:
        numbers_of(row)
    return tokenise_prompts(rows, template, tokenizer, max_length)


def build(recipe: RegressRecipe, job: TrainingJob) -> "NumberTrainer":
    """Build the trainer of a run.

    Raises:
        TrainingError: a number is the same in all training rows.

    """
    disable_dropout_in_model(job.model)
    args = build_arguments(recipe, job, METHOD.objective)
    config = job.model.config
    numbers = torch.tensor([list(numbers_of(row).values()) for row in job.train.rows]).double()
    names = [config.id2label[number] for number in range(numbers.shape[1])]
    # Users of the model compute its numbers with these.
    if not job.keeps_head or not hasattr(config, "target_means"):
        config.target_means, config.target_deviations = _choose_scale(recipe, numbers, names)
    trainer = NumberTrainer(job, args, early_stopping.callbacks(recipe))
    trainer.head_lr_ratio, trainer.loss = recipe.head.head_lr_ratio, recipe.numbers.error
    trainer.job = job
    for data, rows in (
        (trainer.train_dataset, job.train.rows),
        (trainer.eval_dataset, job.validation.rows),
    ):
        # A dry run builds the trainer with one row alone.
        for example, row in zip(data, rows, strict=True):
            true = torch.tensor(list(numbers_of(row).values())).double()
            example["label"] = trainer.standardise(true).float()
    return trainer


def _choose_scale(
    recipe: RegressRecipe, numbers: Tensor, names: Sequence[str]
) -> tuple[list[float], list[float]]:
    """Return the mean and the standard deviation of each column, or 0 and 1.

    A dry run has one row alone, of which no column varies.
    """
    deviations = numbers.std(dim=0, correction=0)
    if len(numbers) > 1 and (constant := (deviations == 0).nonzero().flatten().tolist()):
        name = names[constant[0]]
        raise TrainingError(
            "bad_row",
            f'The number "{name}" is the same in all training rows.',
            hint="Leave its column out of the mapping, or add rows with other numbers.",
        )
    if not recipe.numbers.standardise or len(numbers) == 1:
        return [0.0] * len(names), [1.0] * len(names)
    return numbers.mean(dim=0).tolist(), deviations.tolist()


class NumberTrainer(HeadTrainer):
    """Learns the numbers of each text, in standard deviations from their mean."""

    collator_type = TargetCollator
    columns = COLUMNS
    loss = "mse"
    job: TrainingJob
    _losses: NumberAccumulator

    def new_accumulator(self) -> NumberAccumulator:
        return NumberAccumulator(self.args.device)

    def standardise(self, numbers: Tensor) -> Tensor:
        """Return numbers in standard deviations from their mean: shape (..., numbers)."""
        config = self.model.config
        means, deviations = config.target_means, config.target_deviations
        return (numbers - numbers.new_tensor(means)) / numbers.new_tensor(deviations)

    def in_units(self, scores: Tensor) -> Tensor:
        """Return scores in the units of the data: shape (..., numbers), float64."""
        config, scores = self.model.config, scores.double()
        means, deviations = config.target_means, config.target_deviations
        return scores * scores.new_tensor(deviations) + scores.new_tensor(means)

    def compute_loss(
        self,
        model: nn.Module,
        inputs: Batch,
        return_outputs: bool = False,  # noqa: FBT001, FBT002, ARG002 -- upstream's signature
        num_items_in_batch: Tensor | int | None = None,
    ) -> Tensor:
        """Return the mean loss over the texts of the whole accumulated batch."""
        scores, true = self.scores(model, inputs), inputs["label"]
        losses: Tensor = _LOSSES[self.loss](scores, true, reduction="none").mean(dim=-1)
        self._losses.add_texts(losses, inputs["attention_mask"].sum())
        if not model.training:
            self._losses.keep(self.in_units(scores), self.in_units(true))
        count = len(losses) if num_items_in_batch is None else num_items_in_batch
        mean: Tensor = losses.sum() / count
        return mean

    def evaluation_metrics(self, sums: Mapping[str, float]) -> dict[str, float]:
        names = ("r2", "spearman", "rmse", "mae")
        found = {f"eval_{name}": sums[name] for name in names if name in sums}
        return {"eval_loss": sums["mean_loss"]} | found

    def keep_counts(self) -> None:
        """Write how near the model comes to each number."""
        errors, names = self._losses.errors(), self.model.config.id2label
        columns: Any = zip(
            errors.rmse.tolist(),
            errors.mae.tolist(),
            errors.r2.tolist(),
            errors.spearman.tolist(),
            errors.mean.tolist(),
            errors.deviation.tolist(),
            strict=True,
        )
        targets = [
            TargetScore(
                target=names[number],
                rmse=rmse,
                mae=mae,
                r2=r2,
                spearman=spearman,
                mean=mean,
                deviation=deviation,
            )
            for number, (rmse, mae, r2, spearman, mean, deviation) in enumerate(columns)
        ]
        report = NumberReport(
            step=self.state.global_step, texts=len(self.eval_dataset), targets=targets
        )
        NUMBER_REPORTS.append(self.job.run_dir, report)

    def dummy_batch(self, shape: BatchShape, device: torch.device) -> Batch:
        batch: Batch = shape.tensors(device)
        del batch["labels"]
        numbers = len(self.model.config.id2label)
        return batch | {"label": torch.zeros(shape.examples, numbers, device=device)}
