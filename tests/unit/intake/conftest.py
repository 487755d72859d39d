"""Files as people bring them, read the way the studio reads them."""

import io
import json
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from studio.intake.conversion.converter import ConversionResult, SourceFile, convert_file
from studio.intake.files.limits import Limits
from studio.intake.mapping import Mapping
from studio.intake.row_formats.schema import Turn


@dataclass(frozen=True, slots=True)
class Result:
    converted: ConversionResult
    rows: list[dict[str, Any]]
    held: list[dict[str, Any]]
    """The rows to validate on."""
    folder: Path
    """Where they are."""

    @property
    def conversations(self) -> list[list[Turn]]:
        return [row["messages"] for row in self.rows]

    @property
    def problems(self) -> list[tuple[str, int, list[int]]]:
        return [(one.code, one.count, one.rows) for one in self.converted.problems]


Convert = Callable[..., Result]


def zipped(files: dict[str, bytes]) -> bytes:
    """Return an archive of files by their names."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            # A date of its own would give a test another name on each of its processes.
            archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
    return out.getvalue()


@pytest.fixture
def bring(tmp_path: Path) -> Convert:
    """Convert a file by its content and name, as its columns say or as a mapping says."""

    def _bring(
        content: bytes | str,
        filename: str = "rows.jsonl",
        mapping: Mapping | None = None,
        **limits: Any,  # noqa: ANN401 -- of `Limits`
    ) -> Result:
        path = tmp_path / "uploaded"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        source = SourceFile(path=path, filename=filename)
        converted = convert_file(source, mapping, tmp_path, Limits(**limits))
        return Result(
            converted,
            read_kept_rows(tmp_path, "train"),
            read_kept_rows(tmp_path, "validation"),
            tmp_path,
        )

    return _bring


def read_kept_rows(folder: Path, part: str) -> list[dict[str, Any]]:
    path = folder / f"{part}.jsonl"
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
