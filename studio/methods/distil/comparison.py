"""A trainer that compares a model with its teacher."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from trl.trainer import utils as upstream

from studio.methods.distil import DistilRecipe
from studio.methods.distil.divergence import (
    AnswerStates,
    Comparison,
    Divergence,
    OutputLayer,
    compare,
)
from studio.training.accumulators import SumAccumulator
from studio.training.next_token import NextTokenTrainer


class TeacherTrainer(NextTokenTrainer):
    """Compares the model with its teacher at each answer token, and counts on the device."""

    recipe: DistilRecipe
    teacher: PreTrainedModel
    _losses: "DistilAccumulator"

    def new_accumulator(self) -> "DistilAccumulator":
        return DistilAccumulator(self.args.device)

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,  # noqa: FBT001, FBT002, ARG002 -- upstream's signature
        num_items_in_batch: Tensor | None = None,
    ) -> Tensor:
        """Return the mean loss over the answer tokens of the whole accumulated batch."""
        tokens = inputs.pop("tokens", inputs.get("attention_mask"))
        settings = self.recipe.distillation
        expected = self._read_teacher(inputs)
        comparisons: list[Comparison] = []

        def score(states: AnswerStates) -> Tensor:
            kind = Divergence(settings.beta, settings.temperature)
            comparisons.append(compare(states, expected, kind))
            return comparisons[0].log_probs

        with _scoring(score):
            outputs = model(**inputs, use_cache=False, fused_lm_head=True)
        (found,) = comparisons
        divergence, cross_entropy = found.divergence.sum(), -found.log_probs.sum()
        loss = divergence
        if settings.hard_weight:
            loss = (1 - settings.hard_weight) * divergence + settings.hard_weight * cross_entropy
        self._losses.add_sums(
            loss,
            [
                divergence,
                cross_entropy,
                found.agrees.sum(),
                found.is_top1.sum(),
                outputs.label_mask.sum(),
                tokens.sum(),
            ],
        )
        count = outputs.label_mask.sum() if num_items_in_batch is None else num_items_in_batch
        mean: Tensor = loss / count.clamp(min=1)
        return self.add_aux_loss(mean, outputs.aux_loss)

    def _read_teacher(self, inputs: dict[str, Any]) -> AnswerStates:
        """Let the teacher read a batch, in its own number format whatever the student's is."""
        read: list[AnswerStates] = []

        def keep(states: AnswerStates) -> Tensor:
            read.append(states)
            return states.hidden.new_zeros(len(states.hidden))

        autocast = torch.autocast(self.args.device.type, enabled=False)
        with torch.no_grad(), autocast, _scoring(keep):
            self.teacher(**inputs, use_cache=False, fused_lm_head=True)
        return read[0]

    def evaluation_metrics(self, sums: Mapping[str, float]) -> dict[str, float]:
        names = ("teacher_agreement_share", "cross_entropy", "mean_token_accuracy")
        return {"eval_loss": sums["divergence"]} | {f"eval_{name}": sums[name] for name in names}


@contextmanager
def _scoring(score: Callable[[AnswerStates], Tensor]) -> Iterator[None]:
    """Replace what upstream's fused head computes from a model's last hidden states.

    `score` returns the log-probabilities of the answer tokens: shape (tokens,).
    """

    def apply(
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        labels: Tensor,
        _temperature: float,
        _columns: int,
        softcap: float | None,
        scale: float,
        _outputs: object,
    ) -> tuple[Tensor, None, None, None, None]:
        layer = OutputLayer(
            weight=weight, bias=bias, scale=scale, softcap=softcap, dtype=_product_format(hidden)
        )
        states = AnswerStates(hidden=hidden, layer=layer, labels=labels)
        return score(states), None, None, None, None

    original = upstream._ChunkedLogProbFunction  # noqa: SLF001 -- no public name
    upstream._ChunkedLogProbFunction = SimpleNamespace(apply=apply)  # noqa: SLF001 -- the same
    try:
        yield
    finally:
        upstream._ChunkedLogProbFunction = original  # noqa: SLF001 -- the same


def _product_format(hidden: Tensor) -> torch.dtype:
    """Return the format that a product with hidden states reads here."""
    device = hidden.device.type
    is_autocast = torch.is_autocast_enabled(device)
    return torch.get_autocast_dtype(device) if is_autocast else hidden.dtype


class DistilAccumulator(SumAccumulator):
    """Sums over answer tokens."""

    SAVED_AS: ClassVar[str] = "DistilTally"
    _MEANS: ClassVar[dict[str, str]] = {
        "mean_loss": "loss",
        "divergence": "divergence",
        "cross_entropy": "cross_entropy",
        "teacher_agreement_share": "agreeing",
        "mean_token_accuracy": "correct",
    }
    """What is reported as a mean over answer tokens, and its sum."""
    NAMES: ClassVar[tuple[str, ...]] = (*_MEANS.values(), "answers", "tokens")

    def read(self) -> dict[str, float]:
        """Return the means since the last read."""
        sums = self.read_sums()
        answers = max(sums["answers"], 1)
        means = {name: sums[key] / answers for name, key in self._MEANS.items()}
        return self.read_counts(sums) | means
