"""What the trainers of all methods share: how they load, count, guard, save and resume."""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import torch
from peft import get_peft_model
from torch import Tensor
from torch.optim import Optimizer
from transformers import PreTrainedModel, TrainerCallback, set_seed
from transformers.trainer_utils import EvalLoopOutput
from trl import SFTConfig
from trl.models import get_act_offloading_ctx_manager

from studio.errors import TrainingError
from studio.metrics import MetricSpec
from studio.recipe.base import Recipe
from studio.recipe.fields import Section, own_fields
from studio.recipe.optimizers import OPTIMIZERS
from studio.recipe.sections import Optimisation
from studio.training import learning_rates
from studio.training.accumulators import LossAccumulator
from studio.training.checkpoints.resume import ResumableTrainerMixin
from studio.training.data import packed_dataset, tokenisation
from studio.training.job import TrainingJob
from studio.training.memory.dry_run import BatchShape
from studio.training.models import (
    continued_adapter,
    eva,
    loader,
    loftq,
    lora_variants,
    weight_formats,
)
from studio.training.monitoring import early_stopping
from studio.training.monitoring.divergence_guard import GuardedTrainerMixin
from studio.training.precision import fsdp, muon, optimizers
from studio.training.precision.verification import PrecisionTrainerMixin

_NO_EMBEDDINGS = TrainingError(
    "conflict",
    "The embeddings of this model cannot have their own learning rate here.",
    hint="Leave the embedding learning rate empty.",
)


def build_arguments(recipe: Recipe, job: TrainingJob, objective: MetricSpec) -> SFTConfig:
    """Return the upstream arguments of a run."""
    optimisation = recipe.optimisation
    args = SFTConfig(
        output_dir=str(job.run_dir.checkpoints),
        **_optimisation_arguments(optimisation),
        **_upstream_values(recipe.evaluation),
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


def _optimisation_arguments(optimisation: Optimisation) -> dict[str, Any]:
    """Return the settings that upstream has, with a name of an optimizer that it knows."""
    upstream_name = OPTIMIZERS[optimisation.optim].upstream or optimisation.optim
    return _upstream_values(optimisation) | {"optim": upstream_name}


def _upstream_values(section: Section) -> dict[str, Any]:
    """Return the settings of a section that its upstream config has."""
    return section.model_dump(exclude_none=True, exclude=own_fields(type(section)))


class RunTrainer(GuardedTrainerMixin, PrecisionTrainerMixin, ResumableTrainerMixin):
    """A trainer that counts on the device and reads the counters once per logging step."""

    loss_is_scaled_for_ga = True
    collator_type: type[tokenisation.Collator] = tokenisation.Collator

    teacher: PreTrainedModel | None = None
    """The frozen model to learn from, besides the data."""

    facts: Mapping[str, int] = {}
    """What a method says of its data, besides what all do."""

    def __init__(self, job: TrainingJob, args: SFTConfig, callbacks: list[TrainerCallback]) -> None:
        self.mode, self.pad_token_id = job.mode, job.tokenizer.pad_token_id
        # Adapter weights are initialised at random, and upstream sets the seed only after this.
        set_seed(args.seed)
        model = job.model if job.adapter is None else get_peft_model(job.model, job.adapter)
        self.changes_start = job.trained.changes_start
        self.lr_ratio = job.lr_ratio
        self.optim = job.optimisation.optim
        self.embedding_rate = job.optimisation.embedding_learning_rate
        if job.variant is not None and job.changes_base:
            lora_variants.split_base(model, job.variant, job.run_dir.adapter_start)
        if job.variant is not None and job.variant.corrects_rounding:
            loftq.initialise(model, weight_formats.weight_files(job.spec.model))
        if job.adapter is not None and job.spec.adapter is not None:
            continued_adapter.start_from(model, job.adapter, job.spec.adapter)
        with loader.keep_trained_float32(model) if job.adapter else nullcontext():
            super().__init__(
                model=model,
                args=args,
                train_dataset=job.train.data,
                eval_dataset=job.validation.data,
                processing_class=job.tokenizer,
                data_collator=self.make_collator(job),
                callbacks=callbacks,
                optimizer_cls_and_kwargs=optimizers.choose_optimizer(
                    job.mode, args, job.optimisation.optim
                ),
            )
        # Upstream counts answer tokens only for models that accept the count as an argument.
        self.model_accepts_loss_kwargs = True
        # Upstream requires its own dataset type, but reading it costs more than a batch.
        self.train_dataset: Any = packed_dataset.example_tensors(job.train)
        self.eval_dataset: Any = packed_dataset.example_tensors(job.validation)
        if job.variant is not None and job.variant.reads_data and job.spec.adapter is None:
            with self.compute_loss_context_manager():
                eva.initialise(self.model, self._first_batches(eva.BATCHES))
        # Built last: it recognises weights by where they are stored.
        self.offloading = (
            get_act_offloading_ctx_manager(self.model, warn_if_no_head=False)
            if job.optimisation.activation_offloading
            else nullcontext()
        )
        self._losses = self.new_accumulator()
        self.accumulators = (self._losses,)

    def make_collator(self, job: TrainingJob) -> tokenisation.Collator:
        """Return what makes batches of rows."""
        return self.collator_type(job.tokenizer.pad_token_id)

    def make_text_collator(self) -> tokenisation.Collator:
        """Return what makes batches of rows as the next token is predicted of them."""
        return tokenisation.Collator(self.pad_token_id)

    def training_step(self, *args: object, **kwargs: object) -> Tensor:
        """Keep activations in the host's memory until the backward pass, if the recipe says so.

        Upstream's own setting does so only in some trainers, and looks at the weights too early.
        """
        with self.offloading:
            loss: Tensor = super().training_step(*args, **kwargs)
        return loss

    def create_optimizer(self, *args: object) -> Optimizer:
        """Put weights that are updated in another way into groups of their own.

        These are embeddings with their own learning rate or with states in float32, the second
        matrices of a LoRA+ adapter, and the matrices that Muon updates.

        Raises:
            TrainingError: the optimizer has no embeddings, as when shards replace them.

        """
        is_new = self.optimizer is None
        optimizer: Optimizer = super().create_optimizer(*args)
        if is_new and self.lr_ratio != 1:
            rate = self.lr_ratio * self.args.learning_rate
            ids = learning_rates.outer_adapter_ids(self.model)
            learning_rates.separate(optimizer, ids, lr=rate)
        if is_new and self.embedding_rate is not None:
            ids = learning_rates.embedding_ids(self.model)
            if not learning_rates.separate(optimizer, ids, lr=self.embedding_rate):
                raise _NO_EMBEDDINGS
        if is_new and OPTIMIZERS[self.optim].has_8bit_states:
            ids = learning_rates.embedding_ids(self.model)
            learning_rates.separate(optimizer, ids, is_table=True)
        if is_new and isinstance(optimizer, muon.MuonAdamW):
            ids = muon.matrix_ids(self.model)
            learning_rates.separate(optimizer, ids, is_matrix=True)
        return optimizer

    def _first_batches(self, count: int) -> list[dict[str, Tensor]]:
        """Return the first training rows in batches of the run's size, on its device."""
        size, collate = self.args.train_batch_size, self.make_text_collator()
        rows = [self.train_dataset[i] for i in range(min(count * size, len(self.train_dataset)))]
        parts = (rows[start : start + size] for start in range(0, len(rows), size))
        return [self._prepare_inputs(collate(part)) for part in parts]

    def new_accumulator(self) -> LossAccumulator:
        """Return empty sums for what a logging step or an evaluation counts."""
        return LossAccumulator(self.args.device)

    def score_reference(self, enter: Callable[[str], None]) -> None:
        """Score the data with the untrained model, for methods that compare with it.

        Called once, before weights of a checkpoint are loaded; `enter` is called with the phase.
        """

    def dummy_batch(self, shape: BatchShape, device: torch.device) -> dict[str, Tensor]:
        """Return a batch of this shape, for a dry run."""
        return shape.tensors(device)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs:
            logs |= self._losses.read()
        super().log(logs, start_time)

    def evaluation_loop(self, *args: object, **kwargs: object) -> EvalLoopOutput:
        """Weight every token or row equally: the result does not depend on the batch size."""
        training, self._losses = self._losses, self.new_accumulator()
        try:
            output = super().evaluation_loop(*args, **kwargs)
            self.keep_counts()
            sums = self._losses.read()
        finally:
            self._losses = training
        output.metrics.update(self.evaluation_metrics(sums))
        return output

    def keep_counts(self) -> None:
        """Write what an evaluation counted besides its metrics; nothing by default."""

    def evaluation_metrics(self, sums: Mapping[str, float]) -> dict[str, float]:
        """Return what an evaluation reports, from the sums over its rows."""
        raise NotImplementedError

    def floating_point_ops(self, _inputs: dict[str, Any]) -> int:
        """Return 0: upstream walks all parameters for every batch, and the result is never used."""
        return 0
