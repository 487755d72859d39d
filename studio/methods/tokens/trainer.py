"""The torch side of token classification."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from trl.trainer.utils import disable_dropout_in_model

from studio.intake.row_formats.tagged_words import find_entities
from studio.methods.tokens import METHOD, TokensRecipe
from studio.methods.tokens.counting import EntityCounts, TagAccumulator
from studio.methods.tokens.texts import list_tags, tokenise
from studio.protocols.entity_reports import ENTITY_REPORTS, EntityReport, EntityScore
from studio.training.data.labels import IGNORE_INDEX
from studio.training.data.rows import TrainingRow
from studio.training.data.tagged_words import find_places
from studio.training.data.tokenisation import Examples
from studio.training.head_trainer import Batch, HeadTrainer
from studio.training.job import TrainingJob
from studio.training.models import heads
from studio.training.models.heads import Head
from studio.training.monitoring import early_stopping
from studio.training.run_trainer import build_arguments

__all__ = ["build", "choose_head", "tokenise"]


def choose_head(rows: Sequence[TrainingRow]) -> Head:
    """Return the head of a tagger: one score per tag, for each token.

    Raises:
        TrainingError: the rows have no tags, or nothing to learn in them.

    """
    return Head(list_tags(rows), "token_classification")


def build(recipe: TokensRecipe, job: TrainingJob) -> "TagTrainer":
    """Build the trainer of a run."""
    disable_dropout_in_model(job.model)
    args = build_arguments(recipe, job, METHOD.objective)
    # Users of the model read here which token of a word says what it is.
    job.model.config.tagged_at = "last" if heads.encoder_of(job.model.config) is None else "first"
    trainer = TagTrainer(job, args, early_stopping.callbacks(recipe))
    trainer.head_lr_ratio = recipe.head.head_lr_ratio
    trainer.job = job
    lost = _label(trainer.train_dataset, job.train, job) + _label(
        trainer.eval_dataset, job.validation, job
    )
    trainer.facts = {"lost_entities": lost} if lost else {}
    return trainer


def _label(data: list[dict[str, Tensor]], examples: Examples, job: TrainingJob) -> int:
    """Replace the numbers of words by the tags of words; return how many entities are lost.

    These are truncated, or begin in the middle of a token.
    """
    config: Any = job.model.config
    is_first = config.tagged_at == "first"
    lost = 0
    # A dry run builds the trainer with one row alone, and with tensors that have no values.
    for example, row, numbers in zip(data, examples.rows, examples.data["labels"], strict=True):
        places = find_places(numbers, is_first=is_first)
        labels = [IGNORE_INDEX] * len(numbers)
        for number, token in places.items():
            labels[token] = config.label2id[row.tags[number]]
        example["labels"] = torch.tensor(labels)
        read = max(places) + 1
        lost += sum(one.start not in places or one.end > read for one in find_entities(row.tags))
    return lost


class TagTrainer(HeadTrainer):
    """Learns the tag of each word by cross-entropy.

    Losses are means over the words of an accumulated batch.
    """

    columns = ("input_ids", "labels")
    job: TrainingJob
    _losses: TagAccumulator

    def new_accumulator(self) -> TagAccumulator:
        names: Mapping[int, str] = self.model.config.id2label
        return TagAccumulator(self.args.device, [names[number] for number in range(len(names))])

    def compute_loss(
        self,
        model: nn.Module,
        inputs: Batch,
        return_outputs: bool = False,  # noqa: FBT001, FBT002, ARG002 -- upstream's signature
        num_items_in_batch: Tensor | int | None = None,
    ) -> Tensor:
        """Return the mean loss over the words of the whole accumulated batch."""
        scores, labels = self.scores(model, inputs), inputs["labels"]
        total = cross_entropy(scores.flatten(0, 1), labels.flatten(), reduction="sum")
        given = scores.detach().argmax(dim=-1)
        self._losses.add_words(total, given, labels, inputs["attention_mask"].sum())
        if not model.training:
            self._losses.add_entities(given, labels)
        count = (labels != IGNORE_INDEX).sum() if num_items_in_batch is None else num_items_in_batch
        mean: Tensor = total / count
        return mean

    def count_rows(self, batch: Batch) -> int:
        """Return the number of words of a batch."""
        return int((batch["labels"] != IGNORE_INDEX).sum())

    def evaluation_metrics(self, sums: Mapping[str, float]) -> dict[str, float]:
        names = ("tag_accuracy", "entity_precision", "entity_recall", "entity_f1")
        return {"eval_loss": sums["mean_loss"]} | {f"eval_{name}": sums[name] for name in names}

    def keep_counts(self) -> None:
        """Write how well entities of each label were found."""
        counts = self._losses.entities()
        report = EntityReport(
            step=self.state.global_step,
            texts=len(self.eval_dataset),
            f1=counts.scores()[2],
            labels=[_score(label, counts) for label in counts.labels],
        )
        ENTITY_REPORTS.append(self.job.run_dir, report)


def _score(label: str, counts: EntityCounts) -> EntityScore:
    precision, recall, f1 = counts.scores(label)
    return EntityScore(
        label=label,
        precision=precision,
        recall=recall,
        f1=f1,
        support=counts.true[label],
        given=counts.given[label],
    )
