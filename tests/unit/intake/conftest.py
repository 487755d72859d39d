"""Files as people bring them, read the way the studio reads them."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from studio.intake.convert import Converted, Source, convert
from studio.intake.rows import Limits
from studio.intake.turns import Turn


@dataclass(frozen=True, slots=True)
class Result:
    converted: Converted
    conversations: list[list[Turn]]

    @property
    def problems(self) -> list[tuple[str, int, list[int]]]:
        return [(one.code, one.count, one.rows) for one in self.converted.problems]


Bring = Callable[..., Result]


@pytest.fixture
def bring(tmp_path: Path) -> Bring:
    """Convert a file by its content and name."""

    def _bring(content: bytes | str, filename: str = "rows.jsonl", **limits: int) -> Result:
        path, target = tmp_path / "uploaded", tmp_path / "train.jsonl"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        converted = convert(Source(path=path, filename=filename), target, Limits(**limits))
        lines = target.read_text(encoding="utf-8").splitlines()
        return Result(converted, [json.loads(line)["messages"] for line in lines])

    return _bring
