"""What a tagger counts: losses and right tags on the device, and entities in evaluations."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from studio.intake.row_formats.tagged_words import find_entities
from studio.training.accumulators import SumAccumulator
from studio.training.data.labels import IGNORE_INDEX


@dataclass(slots=True)
class EntityCounts:
    """How many entities of each label were found rightly, found, and true.

    An entity is found rightly if its start, end and label are right: the definition of CoNLL-2003
    (https://aclanthology.org/W03-0419, section 2.4) and of seqeval.
    """

    right: Counter[str] = field(default_factory=Counter)
    given: Counter[str] = field(default_factory=Counter)
    true: Counter[str] = field(default_factory=Counter)

    def add(self, true: Sequence[str], given: Sequence[str]) -> None:
        """Count the entities of a text, from its true tags and those that it was given."""
        true_entities, given_entities = set(find_entities(true)), set(find_entities(given))
        for counter, entities in (
            (self.right, true_entities & given_entities),
            (self.given, given_entities),
            (self.true, true_entities),
        ):
            counter.update(entity.label for entity in entities)

    @property
    def labels(self) -> list[str]:
        """The labels that are true or given, in alphabetical order."""
        return sorted({*self.true, *self.given})

    def scores(self, label: str | None = None) -> tuple[float, float, float]:
        """Return precision, recall and F1: of one label, or of all entities together."""
        right, given, true = (
            counter.total() if label is None else counter[label]
            for counter in (self.right, self.given, self.true)
        )
        return right / max(given, 1), right / max(true, 1), 2 * right / max(given + true, 1)


class TagAccumulator(SumAccumulator):
    """Sums over tagged words; in evaluations, also the entities that they form."""

    SAVED_AS: ClassVar[str] = "TagSums"
    NAMES: ClassVar[tuple[str, ...]] = ("loss", "tokens", "words", "right")

    def __init__(self, device: torch.device, names: Sequence[str]) -> None:
        super().__init__(device)
        self._names = names
        self._batches: list[tuple[Tensor, Tensor]] = []
        """True and given labels whose entities are not counted yet."""
        self._entities = EntityCounts()

    def add_words(self, loss: Tensor, given: Tensor, labels: Tensor, tokens: Tensor) -> None:
        """Add a batch: given labels and true ones, both of shape (rows, tokens)."""
        is_word = labels != IGNORE_INDEX
        self.add_sums(loss, [tokens, is_word.sum(), (is_word & (given == labels)).sum()])

    def add_entities(self, given: Tensor, labels: Tensor) -> None:
        """Keep a batch to count its entities: 4 bytes a token."""
        self._batches.append((labels.to("cpu", torch.int16), given.to("cpu", torch.int16)))

    def entities(self) -> EntityCounts:
        """Count the entities of the batches so far."""
        for batch, answers in self._batches:
            for labels, given in zip(batch.tolist(), answers.tolist(), strict=True):
                words = [token for token, label in enumerate(labels) if label != IGNORE_INDEX]
                self._entities.add(
                    [self._names[labels[token]] for token in words],
                    [self._names[given[token]] for token in words],
                )
        self._batches.clear()
        return self._entities

    def read(self) -> dict[str, float]:
        """Return the means since the last read; entities are those of an evaluation."""
        sums = self.read_sums()
        words = max(sums["words"], 1)
        precision, recall, f1 = self.entities().scores()
        return self.read_counts(sums) | {
            "mean_loss": sums["loss"] / words,
            "tag_accuracy": sums["right"] / words,
            "entity_precision": precision,
            "entity_recall": recall,
            "entity_f1": f1,
        }
