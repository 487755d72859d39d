"""A dry run: simulate real training steps on tensors without data, and measure their memory.

Torch's fake tensors go through every operation of a step, and through autograd, without allocating
what they represent; a ledger records each storage allocated or freed. Upstream's own code runs,
from the trainer's constructor to the optimizer's step. Only its loop is skipped, because it reads
values that fake tensors lack.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from transformers import (
    AutoModelForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    Trainer,
    masking_utils,
)
from trl.kernels import chunked_logprob

from studio.recipe.float_formats import DType
from studio.recipe.precision import Precision
from studio.recipe.quantised import Quantised
from studio.training.data.labels import IGNORE_INDEX
from studio.training.memory.allocation_ledger import AllocationLedger
from studio.training.models import loader, remote_code
from studio.training.precision import matmul_precision

_TRAIN_STEPS = 2
"""The first step creates the optimizer's states; all others find them."""

_MAX_MICRO_BATCHES = 2
"""The first micro-batch of an update finds no gradients; all others do."""

_COMPENSATION_STATES = ("lost", "master")


@dataclass(frozen=True, slots=True)
class BatchShape:
    """The shape of a step's input."""

    examples: int
    length: int
    """Tokens of each example."""
    answer_length: int
    """Trained tokens in each example."""
    is_packed: bool = False
    """Whether rows share an example."""

    @property
    def answer_tokens(self) -> int:
        """Number of tokens with logits: the first token of an example is never predicted."""
        return self.examples * min(self.answer_length, self.length - 1)

    def tensors(self, device: torch.device) -> dict[str, Tensor]:
        """Make a batch with dummy values; with several examples, some are padded."""
        shape = (self.examples, self.length)
        labels = torch.full(shape, IGNORE_INDEX, device=device)
        labels[:, -self.answer_length :] = 0
        batch = {"input_ids": torch.zeros_like(labels), "labels": labels}
        if self.is_packed:
            positions = torch.arange(self.length, device=device).expand(shape).clone()
            positions[:, -1] = 0
            return batch | {"position_ids": positions, "tokens": torch.ones_like(labels[:, 0])}
        mask = torch.ones(shape, dtype=torch.long, device=device)
        mask[1:, -1] = 0
        return batch | {"attention_mask": mask}


@dataclass(frozen=True, slots=True)
class DryRunPlan:
    """What a dry run simulates."""

    build: Callable[[], Trainer]
    """Builds the trainer and everything it needs."""
    mode: Precision
    train: BatchShape
    validate: BatchShape


def make_fake_model(
    name: str,
    config: PreTrainedConfig,
    weights: DType,
    _row: Quantised | None = None,
    code: str = "",
    own: Mapping[str, DType] = MappingProxyType({}),
) -> PreTrainedModel:
    """Build the model that would be loaded, with weights that are never read."""
    model = AutoModelForCausalLM.from_config(
        config,
        dtype=getattr(torch, weights),
        attn_implementation=loader.attention_implementation(config),
        trust_remote_code=remote_code.is_allowed(name, code),
    )
    float32_parts = loader.kept_in_float32(config, weights)
    for weight_name, weight in model.named_parameters():
        if any(loader.matches_part(weight_name, part) for part in float32_parts):
            weight.data = weight.data.float()
    loader.set_formats(model, own)
    return model


def make_fake_mode() -> FakeTensorMode:
    """Return the mode in which to build a model for a dry run."""
    return FakeTensorMode(allow_non_fake_inputs=True)


def simulate_steps(plan: DryRunPlan, mode: FakeTensorMode) -> dict[str, int]:
    """Simulate training steps on fake tensors: nothing is allocated or computed."""
    with mode, _patch_upstream():
        return count_memory(plan)


def count_memory(plan: DryRunPlan) -> dict[str, int]:
    """Train on the given tensors; measure a step with all states present, and a validation.

    Return the bytes by part at the peak.

    This also works with real tensors, which is how tests verify the dry run.
    """
    is_padded = plan.train.examples > 1 or plan.train.is_packed
    ledger = AllocationLedger(selected_tokens=plan.train.answer_tokens, is_padded=is_padded)
    with ledger, ExitStack() as stack:
        trainer = plan.build()
        with unset_fake_temporarily():
            # The format of matrix products is measured with a real product.
            stack.enter_context(matmul_precision.apply_precision(plan.mode, trainer.args.device))
        model = _prepare_model(trainer)
        _track_logits(trainer.model, ledger)
        for _ in range(_TRAIN_STEPS):
            _label_tensors(trainer, ledger)
            ledger.reset()
            _train_step(trainer, model, plan.train, ledger)
        _validate(trainer, model, plan.validate, ledger)
    return ledger.peak_by_part()


def _prepare_model(trainer: Trainer) -> nn.Module:
    """Do what upstream does before its first step."""
    if trainer.args.activation_checkpointing:
        trainer.model.activation_checkpointing_enable(trainer.args.activation_checkpointing_kwargs)
    trainer.create_optimizer()
    model, trainer.optimizer = trainer.accelerator.prepare(trainer.model, trainer.optimizer)
    prepared: nn.Module = model
    return prepared


def _train_step(
    trainer: Trainer, model: nn.Module, batch: BatchShape, ledger: AllocationLedger
) -> None:
    device = trainer.args.device
    times = min(trainer.args.gradient_accumulation_steps, _MAX_MICRO_BATCHES)
    count = torch.ones((), dtype=torch.long, device=device)
    trainer.current_gradient_accumulation_steps = times
    for _ in range(times):
        ledger.part = "activations"
        trainer.training_step(model, batch.tensors(device), count)
        ledger.label("gradients", (p.grad for p in model.parameters() if p.grad is not None))
    ledger.part = "scratch"
    trainer._clip_grad_norm(model)  # noqa: SLF001 -- upstream's loop calls it
    trainer.optimizer.step()
    model.zero_grad()


def _validate(
    trainer: Trainer, model: nn.Module, batch: BatchShape, ledger: AllocationLedger
) -> None:
    ledger.part, ledger.selected_tokens = "activations", batch.answer_tokens
    inputs = batch.tensors(trainer.args.device)
    model.eval()
    with torch.no_grad(), trainer.compute_loss_context_manager():
        trainer.compute_loss(model, inputs)


def _label_tensors(trainer: Trainer, ledger: AllocationLedger) -> None:
    """Label all tensors that exist between two steps."""
    has_adapter = hasattr(trainer.model, "peft_config")
    for weight in trainer.model.parameters():
        ledger.label("adapter" if has_adapter and weight.requires_grad else "weights", [weight])
    ledger.label("weights", trainer.model.buffers())
    for state in trainer.optimizer.state.values():
        for name, value in state.items():
            part = "compensation" if name in _COMPENSATION_STATES else "optimizer"
            ledger.label(part, [value] if isinstance(value, Tensor) else ())


def _track_logits(model: PreTrainedModel, ledger: AllocationLedger) -> None:
    """Tell the ledger when logits are computed: from the last layer on, and back to it."""

    def leave_head(_gradient: Tensor) -> None:
        ledger.part = "activations"

    def enter_head(_layers: nn.Module, _args: object, output: Any) -> None:  # noqa: ANN401 -- upstream is untyped
        ledger.part = "scores"
        if output.last_hidden_state.requires_grad:
            output.last_hidden_state.register_hook(leave_head)

    base = model.get_base_model() if hasattr(model, "peft_config") else model
    base.base_model.register_forward_hook(enter_head)


@contextmanager
def _patch_upstream() -> Iterator[None]:
    """Make upstream behave as in a real step where it checks for a compiler or a kernel."""
    with (
        # Fake tensors usually mean a compiler, for which upstream writes out even an all-true mask.
        _patched(masking_utils, "is_tracing", lambda _tensor: False),
        # Torch moves a module by swapping tensors, which fails while a mode references them.
        _patched(nn.Module, "_apply", _move_module),
        # These kernels write in place and cannot be launched on fake tensors.
        _patched(chunked_logprob, "_forward_kernel", _NoOpKernel()),
        _patched(chunked_logprob, "_backward_kernel", _NoOpKernel()),
    ):
        yield


@contextmanager
def _patched(owner: object, name: str, value: object) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def _move_module(
    module: nn.Module,
    move: Callable[[Tensor], Tensor],
    recurse: bool = True,  # noqa: ARG001, FBT001, FBT002 -- upstream's signature
) -> nn.Module:
    """Move a module's tensors; shared tensors stay shared."""
    parameters: dict[Tensor, nn.Parameter] = {}
    for inner in module.modules():
        for name, old in inner._parameters.items():  # noqa: SLF001 -- as upstream does
            if old is not None:
                moved = move(old.data)
                same = moved.dtype == old.dtype and moved.device == old.device
                new = old if same else nn.Parameter(moved, requires_grad=old.requires_grad)
                inner._parameters[name] = parameters.setdefault(old, new)  # noqa: SLF001 -- the same
        for name, buffer in inner._buffers.items():  # noqa: SLF001 -- the same
            if buffer is not None:
                inner._buffers[name] = move(buffer)  # noqa: SLF001 -- the same
    return module


class _NoOpKernel:
    """Replaces a kernel with one that does nothing."""

    def __getitem__(self, _grid: object) -> Callable[..., None]:
        return lambda *_args, **_kwargs: None
