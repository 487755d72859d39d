"""Which weights of a model a full fine-tune trains: all, or a part by layer and by kind."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

ExtraModules = Literal["none", "norms", "output", "embeddings", "norms_and_embeddings"]

_NORM = re.compile(r"norm|(^|[._])ln([._]|\d)", re.IGNORECASE)
_TIED_NAME = "embed_tokens"
"""The name by which peft recognises embeddings that the output layer shares
(`peft.utils.constants.EMBEDDING_LAYER_NAMES`)."""
_NUMBER = re.compile(r"(?:^|\.)(\d+)\.")


@dataclass(frozen=True, slots=True)
class ModelWeight:
    """A weight of a model, by the name it has there or in the model's files."""

    path: str
    size: int
    is_embedding: bool = False
    """Whether it is the table of token embeddings."""
    is_output: bool = False
    """Whether it belongs to the output layer, which may be the table of token embeddings."""

    @property
    def is_table(self) -> bool:
        """Whether it has a row for each token."""
        return self.is_embedding or self.is_output

    @property
    def is_norm(self) -> bool:
        return _NORM.search(self.path) is not None

    @property
    def number(self) -> int | None:
        """The number of the decoder layer it is in; None if it is in none."""
        found = _NUMBER.search(self.path)
        return int(found[1]) if found else None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedPart:
    """The weights that a full fine-tune trains; the others stay as they are."""

    last_layers: int | None = None
    """How many decoder layers, counted from the end; None for all weights."""
    extra: ExtraModules = "none"
    """What is trained besides these layers."""
    new_tokens: int = 0
    """How many tokens have only their own rows trained, of tables that are frozen otherwise."""

    @property
    def is_everything(self) -> bool:
        return self.last_layers is None

    @property
    def is_nothing(self) -> bool:
        return self.last_layers == 0 and self.extra == "none" and not self.new_tokens

    @property
    def has_norms(self) -> bool:
        return self.is_everything or "norms" in self.extra

    @property
    def has_embeddings(self) -> bool:
        return self.is_everything or "embeddings" in self.extra

    @property
    def has_output(self) -> bool:
        return self.has_embeddings or self.extra == "output"

    @property
    def reaches_first_layer(self) -> bool:
        """Whether gradients go through all layers, because something is trained in the first."""
        return self.has_norms or self.has_embeddings or self.new_tokens > 0

    def row_tables(self, weights: Sequence[ModelWeight]) -> list[ModelWeight]:
        """Return the tables of which only the rows of new tokens are trained."""
        if not self.new_tokens:
            return []
        return [w for w in weights if w.is_table and not (w.is_output and self.has_output)]

    def select(self, weights: Sequence[ModelWeight]) -> list[ModelWeight]:
        """Return the weights of a model that are trained."""
        first = count_layers(weights) - (self.last_layers or 0)
        return [weight for weight in weights if self.is_everything or self._covers(weight, first)]

    def _covers(self, weight: ModelWeight, first: int) -> bool:
        if weight.number is not None and weight.number >= first:
            return True
        return (
            (weight.is_embedding and self.has_embeddings)
            or (weight.is_output and self.has_output)
            or (weight.is_norm and self.has_norms)
        )

    def find_problem(self, weights: Sequence[ModelWeight]) -> str:
        """Return what the model lacks, in a sentence with what it has; empty if nothing."""
        count = count_layers(weights)
        if self.last_layers is not None and self.last_layers > count:
            return f"This model has {count} layers, so its last {self.last_layers} do not exist."
        if self.is_everything:
            return ""
        if "norms" in self.extra and not any(weight.is_norm for weight in weights):
            return "The norms of this model have no weights."
        if self.extra == "output" and not any(weight.is_output for weight in weights):
            return "This model has no output layer for tokens."
        if self.extra == "output" and any(w.is_output and w.is_embedding for w in weights):
            return "The output layer of this model is its token embeddings: train the embeddings."
        return ""

    def find_adapter_problem(self, weights: Sequence[ModelWeight], *, can_tie: bool = True) -> str:
        """Return why these weights cannot be trained next to an adapter; empty if they can.

        `can_tie` says whether such an adapter can train a table that two layers share.
        """
        table = next((w for w in weights if w.is_embedding and w.is_output), None)
        if self.has_embeddings and table is not None and not can_tie:
            return (
                "The output layer of this model is its token embeddings, which only LoRA can train "
                "next to it."
            )
        if self.has_embeddings and table is not None and _TIED_NAME not in table.path:
            name = table.path.removesuffix(".weight").rpartition(".")[2]
            return (
                f"The output layer of this model is its token embeddings, {name}. An adapter can "
                f"train both as one only if they are named {_TIED_NAME}."
            )
        return self.find_problem(weights)


def count_layers(weights: Sequence[ModelWeight]) -> int:
    """Return the number of decoder layers that the weights are in."""
    return max((weight.number + 1 for weight in weights if weight.number is not None), default=0)
