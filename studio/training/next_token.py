"""A trainer that predicts the next token and computes the loss on trained tokens only."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import TrainerCallback
from trl import SFTConfig, SFTTrainer
from trl.trainer import utils as upstream

from studio.training.job import TrainingJob
from studio.training.models import new_tokens
from studio.training.run_trainer import RunTrainer

CPU_LOGIT_COLUMNS = 4096
"""Vocabulary columns whose logits a CPU computes at once."""


class NextTokenTrainer(RunTrainer, SFTTrainer):  # type: ignore[misc] # upstream is untyped
    """TRL's SFT trainer, with the loss of trained tokens only."""

    head_outputs: tuple[str, ...] = ("log_probs", "is_top1")
    """What the output head computes for each answer token, by upstream's names."""
    head_temperature = 1.0
    """What the logits are divided by."""

    def __init__(self, job: TrainingJob, args: SFTConfig, callbacks: list[TrainerCallback]) -> None:
        super().__init__(job, args, callbacks)
        bare_model = self.model.get_base_model() if job.adapter else self.model
        new_tokens.complete_head(bare_model)
        self.prepare_head(bare_model)

    def prepare_head(self, model: nn.Module) -> None:
        """Make a model compute the loss on trained tokens only."""
        _compute_answer_logits_only(model, self.head_outputs, self.head_temperature)

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,  # noqa: FBT001, FBT002, ARG002 -- upstream's signature
        num_items_in_batch: Tensor | None = None,
    ) -> Tensor:
        """Return the mean loss over the answer tokens of the whole accumulated batch."""
        tokens = inputs.pop("tokens", inputs.get("attention_mask"))
        outputs = model(**inputs, use_cache=False, fused_lm_head=True)
        trained = outputs.label_mask.sum()
        loss = -outputs.log_probs.sum()
        self._losses.add(loss, trained, outputs.is_top1.sum(), tokens.sum())
        if self.args.loss_type == "dft" and model.training:
            # Dynamic fine-tuning: each token counts by the probability the model gives it.
            loss = -(outputs.log_probs * outputs.log_probs.detach().exp()).sum()
        count = trained if num_items_in_batch is None else num_items_in_batch
        mean: Tensor = loss / count.clamp(min=1)
        return self.add_aux_loss(mean, outputs.aux_loss)

    def add_aux_loss(self, mean: Tensor, aux_loss: Tensor | None) -> Tensor:
        """Add the load-balancing loss of a mixture of experts, once per micro-batch."""
        if aux_loss is None or not self.model.training:
            return mean
        share: float = self.router_aux_loss_coef / self.current_gradient_accumulation_steps
        return mean + share * aux_loss

    def evaluation_metrics(self, sums: Mapping[str, float]) -> dict[str, float]:
        """Return what an evaluation reports, from the sums over its rows."""
        return {
            "eval_loss": sums["mean_loss"],
            "eval_mean_token_accuracy": sums["mean_token_accuracy"],
        }

    def _send_telemetry(self) -> None:
        """Disable telemetry."""


def _compute_answer_logits_only(
    model: nn.Module, outputs: tuple[str, ...], temperature: float
) -> None:
    """Compute vocabulary logits for answer tokens only: the widest tensor of a small model.

    Upstream does so only with Triton, to avoid recompiling for every shape; eager torch compiles
    nothing. This also skips the entropy, which upstream would compute next to the loss.
    """
    upstream._use_triton = lambda _device: True  # noqa: SLF001 -- upstream checks it only here
    if not torch.cuda.is_available():
        # Without Triton, a tile needs eight times its own size while it is processed.
        upstream._CHUNKED_LOGPROB_CHUNK_SIZE = CPU_LOGIT_COLUMNS  # noqa: SLF001 -- no public setting
    upstream.add_fused_lm_head(model, temperature=temperature, outputs=outputs)
