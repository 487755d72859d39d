"""A dry run: simulate real training steps on tensors without data, and measure their memory.

Torch's fake tensors go through every operation of a step, and through autograd, without allocating
what they represent; a ledger records each storage allocated or freed. Upstream's own code runs,
from the trainer's constructor to the optimizer's step. Only its loop is skipped, because it reads
values that fake tensors lack.
"""

import os
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import chain
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import (
    PreTrainedConfig,
    PreTrainedModel,
    Trainer,
    masking_utils,
)
from trl.kernels import chunked_logprob

from studio.recipe.precision import DType, Precision, Quantised
from studio.training.data.labels import IGNORE_INDEX
from studio.training.models import heads, loader, tokenizers
from studio.training.precision import matmul_precision

_aten = torch.ops.aten
_TO_COPY = _aten._to_copy  # noqa: SLF001 -- an operator's name
_TO_SCALAR = _aten._local_scalar_dense  # noqa: SLF001 -- an operator's name


class AllocationLedger(TorchDispatchMode):  # type: ignore[no-untyped-call] # upstream is untyped
    """Records every allocation; for fake tensors it also supplies data-dependent values."""

    def __init__(self, *, selected_tokens: int, is_padded: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # upstream is untyped
        self.part = "activations"
        """The part that new storages belong to, unless the operation shows otherwise."""
        self.selected_tokens = selected_tokens
        """How many tokens a mask selects."""
        self._is_padded = is_padded
        self._allocations: list[tuple[int, int]] = []
        """Bytes allocated, or freed if negative, and the number of the storage."""
        self._parts: list[str] = []
        self._live_storages: dict[int, tuple[int, int]] = {}
        """By address, which is unique while the storage lives: number and bytes."""
        self._infinities: set[int] = set()

    def label(self, part: str, tensors: Iterable[Tensor]) -> None:
        """Assign tensors to a part, whatever they were recorded as."""
        for tensor in tensors:
            self._parts[self._record(tensor, part)] = part

    def reset(self) -> None:
        """Restart the record from the storages that exist now."""
        self._allocations = [(size, number) for number, size in self._live_storages.values()]

    def peak_by_part(self) -> dict[str, int]:
        """Return the bytes by part at the peak, the largest part first."""
        now: Counter[str] = Counter()
        peak = now.copy()
        for size, number in self._allocations:
            now[self._parts[number]] += size
            peak = max(peak, now.copy(), key=Counter.total)
        return dict((+peak).most_common())

    def __torch_dispatch__(
        self,
        function: Callable[..., Any],
        _types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> object:
        packet = function.overloadpacket  # type: ignore[attr-defined] # an operator
        part = "copies" if self._is_copy(packet, args) else self.part
        result = self._fake_result(packet, args)
        if result is None:
            result = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                self._record(tensor, part)
        return result

    def _fake_result(self, packet: object, args: Sequence[Any]) -> object:
        """Return results that depend on values, which fake tensors lack."""
        match packet:
            case _aten._amp_foreach_non_finite_check_and_unscale_:
                self._infinities.add(self._record(args[1], self.part))
            case _ if packet is _TO_SCALAR and _is_fake(args[0]) and not _is_count(args[0]):
                return self._fake_scalar(args[0])
            case _aten.masked_select if _is_fake(args[0]):
                return args[0].new_empty(self.selected_tokens)
            case _aten.index if _is_fake(args[0]) and _is_mask(args[1][0]):
                return args[0].new_empty(self.selected_tokens, *args[0].shape[args[1][0].dim() :])
        return None

    def _fake_scalar(self, tensor: Tensor) -> float | bool:
        """Return a scalar's value: whether a mask is all true, an infinity was found, or a step."""
        if tensor.dtype == torch.bool:
            return not self._is_padded
        return 0.0 if self._record(tensor, self.part) in self._infinities else 1.0

    def _is_copy(self, packet: object, args: Sequence[Any]) -> bool:
        """Whether an operation casts a weight to another format, as autocast does."""
        if packet is not _TO_COPY or self.part != "activations":
            return False
        allocation = self._live_storages.get(_address(args[0].untyped_storage()))
        return allocation is not None and self._parts[allocation[0]] in ("weights", "adapter")

    def _record(self, tensor: Tensor, part: str) -> int:
        storage = tensor.untyped_storage()
        address, size = _address(storage), storage.nbytes()
        if address not in self._live_storages:
            self._live_storages[address] = len(self._parts), size
            self._allocations.append((size, len(self._parts)))
            self._parts.append(part)
            weakref.finalize(storage, self._record_free, address)
        return self._live_storages[address][0]

    def _record_free(self, address: int) -> None:
        number, size = self._live_storages.pop(address)
        self._allocations.append((-size, number))


def _address(storage: torch.UntypedStorage) -> int:
    address: int = storage._cdata  # noqa: SLF001 -- fake ones have no other
    return address


def _is_fake(tensor: Tensor) -> bool:
    return isinstance(tensor, FakeTensor)


def _is_count(tensor: Tensor) -> bool:
    """Whether it holds whole numbers, such as the sizes of images: any other would be wrong."""
    return not tensor.is_floating_point() and tensor.dtype != torch.bool


def _is_mask(index: Tensor | None) -> bool:
    return index is not None and index.dtype == torch.bool


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
    model: PreTrainedModel = heads.auto_class(config).from_config(
        config,
        dtype=getattr(torch, weights),
        attn_implementation=loader.attention_implementation(config),
        trust_remote_code=tokenizers.is_allowed(name, code),
        **heads.build_options(config),
    )
    float32_parts = loader.kept_in_float32(config, weights)
    for weight_name, weight in model.named_parameters():
        if any(loader.matches_part(weight_name, part) for part in float32_parts):
            weight.data = weight.data.float()
    loader.set_formats(model, own)
    if heads.is_attached(config):
        heads.compute_in_float32(model)
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
        trainer.training_step(model, trainer.dummy_batch(batch, device), count)
        ledger.label("gradients", (p.grad for p in model.parameters() if p.grad is not None))
    ledger.part = "scratch"
    trainer._clip_grad_norm(model)  # noqa: SLF001 -- upstream's loop calls it
    trainer.optimizer.step()
    model.zero_grad()


def _validate(
    trainer: Trainer, model: nn.Module, batch: BatchShape, ledger: AllocationLedger
) -> None:
    ledger.part, ledger.selected_tokens = "activations", batch.answer_tokens
    inputs = trainer.dummy_batch(batch, trainer.args.device)
    model.eval()
    with torch.no_grad(), trainer.compute_loss_context_manager():
        trainer.compute_loss(model, inputs)


def _label_tensors(trainer: Trainer, ledger: AllocationLedger) -> None:
    """Label all tensors that exist between two steps."""
    has_adapter = hasattr(trainer.model, "peft_config")
    for weight in trainer.model.parameters():
        ledger.label("adapter" if has_adapter and weight.requires_grad else "weights", [weight])
    ledger.label("weights", trainer.model.buffers())
    if trainer.teacher is not None:
        ledger.label("teacher", chain(trainer.teacher.parameters(), trainer.teacher.buffers()))
    for state in trainer.optimizer.state.values():
        for name, value in state.items():
            part = "compensation" if name in _COMPENSATION_STATES else "optimizer"
            ledger.label(part, [value] if isinstance(value, Tensor) else ())


def _track_logits(model: PreTrainedModel, ledger: AllocationLedger) -> None:
    """Tell the ledger when logits are computed: from the last layer on, and back to it."""

    def enter_layers(_layers: nn.Module, _args: object) -> None:
        ledger.part = "activations"

    def leave_head(_gradient: Tensor) -> None:
        ledger.part = "activations"

    def enter_head(_layers: nn.Module, _args: object, output: Any) -> None:  # noqa: ANN401 -- upstream is untyped
        ledger.part = "scores"
        if output.last_hidden_state.requires_grad:
            output.last_hidden_state.register_hook(leave_head)

    base = model.get_base_model() if hasattr(model, "peft_config") else model
    layers = base.base_model
    if heads.is_encoder_decoder(base.config):
        layers = base.get_decoder()
    layers.register_forward_pre_hook(enter_layers)
    layers.register_forward_hook(enter_head)


@contextmanager
def _patch_upstream() -> Iterator[None]:
    """Make upstream behave as in a real step where it checks for a compiler or a kernel."""
    with (
        # Counts of tokens of images are not known of tensors without data.
        _patched_environment("TRANSFORMERS_DISABLE_TORCH_CHECK", "1"),
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


@contextmanager
def _patched_environment(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


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
