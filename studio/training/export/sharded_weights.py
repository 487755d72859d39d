"""Split weights into files that fit into memory, with the index that transformers reads."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

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
