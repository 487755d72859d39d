"""A trainer that predicts the next token and computes the loss on trained tokens only."""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any, ClassVar

import torch
from peft import get_peft_model
from torch import Tensor, nn
from torch.optim import Optimizer
from transformers import TrainerCallback, set_seed
from transformers.trainer_utils import EvalLoopOutput
from trl import SFTConfig, SFTTrainer
from trl.trainer import utils as upstream

from studio.metrics import MetricSpec
from studio.recipe.base import Recipe
from studio.recipe.fields import own_fields
from studio.training import learning_rates
from studio.training.checkpoints.resume import ResumableTrainerMixin
from studio.training.data import packed_dataset, tokenisation
from studio.training.job import TrainingJob
from studio.training.memory.dry_run import BatchShape
from studio.training.models import loader, lora_variants
from studio.training.monitoring import early_stopping
from studio.training.monitoring.divergence_guard import GuardedTrainerMixin
from studio.training.precision import fsdp, optimizers
from studio.training.precision.verification import PrecisionTrainerMixin

CPU_LOGIT_COLUMNS = 4096
"""Vocabulary columns whose logits a CPU computes at once."""


def build_arguments(recipe: Recipe, job: TrainingJob, objective: MetricSpec) -> SFTConfig:
    """Return the upstream arguments of a run."""
    optimisation = recipe.optimisation
    args = SFTConfig(
        output_dir=str(job.run_dir.checkpoints),
        **optimisation.model_dump(exclude_none=True, exclude=own_fields(type(optimisation))),
        **recipe.evaluation.model_dump(exclude_none=True),
        **job.mode.trainer_flags,
        **early_stopping.best_model_arguments(recipe, objective),
        eval_strategy="steps",
        eval_on_start=True,
        max_length=recipe.data.max_length,
        dataset_kwargs={"skip_prepare_dataset": True},
        use_cpu=not torch.cuda.is_available(),
        logging_nan_inf_filter=False,
        disable_tqdm=True,
        report_to=[],
    )
    fsdp.set_mixed_precision(job.mode, args)
    return args


class NextTokenTrainer(
    GuardedTrainerMixin,
    PrecisionTrainerMixin,
    ResumableTrainerMixin,
    SFTTrainer,  # type: ignore[misc] # upstream is untyped
):
    """TRL's SFT trainer; it counts on the device and reads the counters once per logging step."""

    loss_is_scaled_for_ga = True
    collator_type: type[tokenisation.Collator] = tokenisation.Collator
    head_outputs: tuple[str, ...] = ("log_probs", "is_top1")
    """What the output head computes for each answer token, by upstream's names."""

    def __init__(self, job: TrainingJob, args: SFTConfig, callbacks: list[TrainerCallback]) -> None:
        self.mode = job.mode
        # Adapter weights are initialised at random, and upstream sets the seed only after this.
        set_seed(args.seed)
        model = job.model if job.adapter is None else get_peft_model(job.model, job.adapter)
        self.changes_base = job.changes_base
        self.lr_ratio = job.lr_ratio
        if job.variant is not None and job.changes_base:
            lora_variants.split_base(model, job.variant, job.run_dir.adapter_start)
        with loader.keep_trained_float32(model) if job.adapter else nullcontext():
            super().__init__(
                model=model,
                args=args,
                train_dataset=job.train.data,
                eval_dataset=job.validation.data,
                processing_class=job.tokenizer,
                data_collator=self.collator_type(job.tokenizer.pad_token_id),
                callbacks=callbacks,
                optimizer_cls_and_kwargs=optimizers.choose_optimizer(job.mode, args),
            )
        # Upstream counts answer tokens only for models that accept the count as an argument.
        self.model_accepts_loss_kwargs = True
        bare_model = self.model.get_base_model() if job.adapter else self.model
        _compute_answer_logits_only(bare_model, self.head_outputs)
        # Upstream requires its own dataset type, but reading it costs more than a batch.
        self.train_dataset: Any = packed_dataset.example_tensors(job.train)
        self.eval_dataset: Any = packed_dataset.example_tensors(job.validation)
        self._losses = self.new_accumulator()
        self.accumulators = (self._losses,)

    def create_optimizer(self, *args: object) -> Optimizer:
        """Put the second matrices of a LoRA+ adapter into groups with their own learning rate."""
        is_new = self.optimizer is None
        optimizer: Optimizer = super().create_optimizer(*args)
        if is_new and self.lr_ratio != 1:
            rate = self.lr_ratio * self.args.learning_rate
            learning_rates.separate(optimizer, learning_rates.outer_adapter_ids(self.model), rate)
        return optimizer

    def new_accumulator(self) -> "LossAccumulator":
        """Return empty sums for what a logging step or an evaluation counts."""
        return LossAccumulator(self.args.device)

    def score_reference(self, enter: Callable[[str], None]) -> None:
        """Score the data with the untrained model, for methods that compare with it.

        Called once, before weights of a checkpoint are loaded; `enter` is called with the phase.
        """

    def dummy_batch(self, shape: BatchShape, device: torch.device) -> dict[str, Tensor]:
        """Return a batch of this shape, for a dry run."""
        return shape.tensors(device)

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

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs:
            logs |= self._losses.read()
        super().log(logs, start_time)

    def evaluation_loop(self, *args: object, **kwargs: object) -> EvalLoopOutput:
        """Weight every token equally, so that the result does not depend on the batch size."""
        training, self._losses = self._losses, self.new_accumulator()
        try:
            output = super().evaluation_loop(*args, **kwargs)
            sums = self._losses.read()
        finally:
            self._losses = training
        output.metrics.update(self.evaluation_metrics(sums))
        return output

    def evaluation_metrics(self, sums: Mapping[str, float]) -> dict[str, float]:
        """Return what an evaluation reports, from the sums over its rows."""
        return {
            "eval_loss": sums["mean_loss"],
            "eval_mean_token_accuracy": sums["mean_token_accuracy"],
        }

    def floating_point_ops(self, _inputs: dict[str, Any]) -> int:
        """Return 0: upstream walks all parameters for every batch, and the result is never used."""
        return 0

    def _send_telemetry(self) -> None:
        """Disable telemetry."""


def _compute_answer_logits_only(model: nn.Module, outputs: tuple[str, ...]) -> None:
    """Compute vocabulary logits for answer tokens only: the widest tensor of a small model.

    Upstream does so only with Triton, to avoid recompiling for every shape; eager torch compiles
    nothing. This also skips the entropy, which upstream would compute next to the loss.
    """
    upstream._use_triton = lambda _device: True  # noqa: SLF001 -- upstream checks it only here
    if not torch.cuda.is_available():
        # Without Triton, a tile needs eight times its own size while it is processed.
        upstream._CHUNKED_LOGPROB_CHUNK_SIZE = CPU_LOGIT_COLUMNS  # noqa: SLF001 -- no public setting
    upstream.add_fused_lm_head(model, outputs=outputs)


class LossAccumulator:
    """Sums kept on the device, so that no training step waits for them."""

    SAVED_AS: ClassVar[str] = "Tally"
    STATE_ATTRIBUTES: ClassVar[tuple[str, ...]] = ("_counts", "_loss", "_streak", "_nonfinite")

    def __init__(self, device: torch.device) -> None:
        self._counts = torch.zeros(3, dtype=torch.long, device=device)
        self._loss = torch.zeros((), device=device)
        self._streak = torch.zeros((), dtype=torch.long, device=device)
        self._nonfinite = torch.zeros((), dtype=torch.long, device=device)

    def add(self, loss: Tensor, trained: Tensor, correct: Tensor, tokens: Tensor) -> None:
        loss = loss.detach()
        self._counts += torch.stack([trained, correct, tokens])
        self._loss += loss
        self._streak = torch.where(loss.isfinite(), 0, self._streak + 1)
        self._nonfinite += ~loss.isfinite()

    def read(self) -> dict[str, float]:
        """Return the sums since the last read, with a single device synchronisation."""
        parts = [self._counts, self._streak[None], self._nonfinite[None], self._loss[None]]
        numbers = torch.cat([part.double() for part in parts]).tolist()
        trained, correct, tokens, streak, nonfinite, loss = numbers
        self._counts.zero_()
        self._loss.zero_()
        return {
            "mean_loss": loss / max(trained, 1),
            "mean_token_accuracy": correct / max(trained, 1),
            "tokens": tokens,
            "nonfinite": streak,
            "nonfinite_losses": nonfinite,
        }
