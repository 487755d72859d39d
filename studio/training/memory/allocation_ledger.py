"""A ledger of memory: records every storage allocated and freed, by its part in a training step."""

import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

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
            case _ if packet is _TO_SCALAR and _is_fake(args[0]):
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


def _is_mask(index: Tensor | None) -> bool:
    return index is not None and index.dtype == torch.bool
