"""Convert weights to another format, tensor by tensor, and measure what changed.

A conversion may round a weight, overflow it (it becomes infinite) or underflow it (it becomes
zero). All three are counted over every weight; nothing is estimated.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedConfig
from transformers.core_model_loading import build_glob_alternation

from studio.training.models import heads
from studio.weights import safetensors_headers
from studio.weights.safetensors_headers import TensorInfo

MAX_SHARD_BYTES = 2 * 10**9


@dataclass(frozen=True, slots=True)
class ShardLayout:
    """Where weights are written: one file, or several with an index."""

    folder: Path
    stem: str = "model"
    limit: int = MAX_SHARD_BYTES

    def assign(
        self, tensors: Sequence[TensorInfo], itemsize: Callable[[TensorInfo], int]
    ) -> Iterator[tuple[Path, list[TensorInfo]]]:
        """Yield each file with the tensors to write to it; then write the index."""
        parts = list(self._parts(tensors, itemsize))
        if len(parts) == 1:
            yield self.folder / f"{self.stem}.safetensors", parts[0]
            return
        names = [
            f"{self.stem}-{number:05}-of-{len(parts):05}.safetensors"
            for number in range(1, len(parts) + 1)
        ]
        for name, part in zip(names, parts, strict=True):
            yield self.folder / name, part
        named_parts = zip(names, parts, strict=True)
        index = {
            "metadata": {
                "total_size": sum(
                    tensor_info.size * itemsize(tensor_info) for tensor_info in tensors
                )
            },
            "weight_map": {tensor.name: name for name, part in named_parts for tensor in part},
        }
        path = self.folder / f"{self.stem}.safetensors.index.json"
        path.write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")

    def _parts(
        self, tensors: Sequence[TensorInfo], itemsize: Callable[[TensorInfo], int]
    ) -> Iterator[list[TensorInfo]]:
        part: list[TensorInfo] = []
        part_bytes = 0
        for tensor in tensors:
            size = tensor.size * itemsize(tensor)
            if part and part_bytes + size > self.limit:
                yield part
                part, part_bytes = [], 0
            part.append(tensor)
            part_bytes += size
        yield part


CHUNK_WEIGHTS = 2**22
"""Weights compared at once, so that large tensors need no more memory than small ones."""

KeepFloat32 = Callable[[str], bool]
"""Whether the tensor with a given name stays float32."""


@dataclass(slots=True)
class ConversionStats:
    """Statistics of a conversion over all weights."""

    weights: int = 0
    changed: int = 0
    overflowed: int = 0
    """Finite before, infinite after."""
    underflowed: int = 0
    """Not zero before, zero after: a relative change of 1."""
    kept: int = 0
    """Weights that upstream keeps in float32, whatever the format of the rest."""
    largest: float = 0.0
    chunk_weights: int = CHUNK_WEIGHTS
    _sum: float = 0.0
    _compared: int = 0

    def add(self, before: Tensor, after: Tensor) -> None:
        """Add a tensor, before and after the conversion."""
        pieces = (torch.split(tensor.flatten(), self.chunk_weights) for tensor in (before, after))
        for old, new in zip(*pieces, strict=True):
            self._add(old.double(), new.double())

    def metrics(self) -> dict[str, float]:
        return {
            "weights": self.weights,
            "changed_weights": self.changed,
            "kept_weights": self.kept,
            "overflowed_weights": self.overflowed,
            "underflowed_weights": self.underflowed,
            "max_relative_change": self.largest,
            "mean_relative_change": self._sum / max(self._compared, 1),
        }

    def _add(self, old: Tensor, new: Tensor) -> None:
        self.weights += old.numel()
        self.overflowed += int((old.isfinite() & new.isinf()).sum())
        self.underflowed += int(((old != 0) & (new == 0)).sum())
        # Skip weights that were NaN or infinite before; overflows are counted separately.
        is_known = old.isfinite() & new.isfinite() & (old != 0)
        old, new = old[is_known], new[is_known]
        if old.numel() == 0:
            return
        relative = ((new - old) / old).abs()
        self.changed += int((relative > 0).sum())
        self.largest = max(self.largest, relative.max().item())
        self._sum += relative.sum().item()
        self._compared += old.numel()


def convert_files(
    files: Sequence[Path],
    shards: ShardLayout,
    to: torch.dtype,
    keep: KeepFloat32,
    done: Callable[[float], None],
    trained: Sequence[Path] = (),
) -> ConversionStats:
    """Write the tensors of some files in another format. `done` receives the share written so far.

    The change is measured against the same tensors in the files of `trained`, if there are any.
    """
    before_in = {
        tensor_info.name: tensor_info.file
        for file in trained
        for tensor_info in safetensors_headers.read_tensors(file)
    }
    tensors = [tensor for file in files for tensor in safetensors_headers.read_tensors(file)]
    change, written = ConversionStats(), 0
    parts = shards.assign(
        tensors, lambda tensor: _target_dtype(tensor.dtype, to, keep(tensor.name)).itemsize
    )
    for path, part in parts:
        converted: dict[str, Tensor] = {}
        for file, group in groupby(part, key=lambda tensor: tensor.file):
            with safe_open(file, framework="pt") as opened:
                for tensor in group:
                    written_from = opened.get_tensor(tensor.name)
                    before = _read_tensor(before_in.get(tensor.name), tensor.name, written_from)
                    after = written_from.to(_target_dtype(tensor.dtype, to, keep(tensor.name)))
                    if before.is_floating_point():
                        change.add(before, after)
                        change.kept += before.numel() if after.dtype != to else 0
                    converted[tensor.name] = after
                    written += tensor.size
        save_file(converted, path, metadata={"format": "pt"})
        done(written / max(sum(tensor.size for tensor in tensors), 1))
    return change


def _read_tensor(file: Path | None, name: str, otherwise: Tensor) -> Tensor:
    if file is None:
        return otherwise
    with safe_open(file, framework="pt") as opened:
        tensor: Tensor = opened.get_tensor(name)
    return tensor


def float32_filter(config: PreTrainedConfig, to: torch.dtype) -> KeepFloat32:
    """Return a filter for the tensors that transformers would load in float32 even in format `to`.

    If written in 16 bits they would be widened on loading, but without the precision they lost.
    """
    with torch.device("meta"):
        options = heads.build_options(config)
        model = heads.auto_class(config).from_config(config, dtype=to, **options)
    float32_names = {
        name
        for name, parameter in model.named_parameters()
        if parameter.dtype == torch.float32 != to
    }
    plan = model._get_dtype_plan(to)  # noqa: SLF001 -- upstream has no other word
    pattern = build_glob_alternation(list(plan))[0] if plan else None
    return lambda name: (
        name in float32_names or (pattern is not None and bool(pattern.search(name)))
    )


def _target_dtype(stored: str, to: torch.dtype, is_kept: bool) -> torch.dtype:  # noqa: FBT001 -- one fact
    dtype: torch.dtype = getattr(torch, stored)
    if not dtype.is_floating_point:
        return dtype
    return torch.float32 if is_kept else to
