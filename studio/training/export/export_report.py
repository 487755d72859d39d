"""Write what an export is: a card for people, and the same facts as JSON with each file's hash."""

import hashlib
import json
import math
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from studio.errors import InvalidError
from studio.recipe.exports import EXPORT_FORMATS, ExportSpec
from studio.training import model_card
from studio.training.export.export_source import ExportSource
from studio.training.model_card import ExportFindings
from studio.weights import model_metadata

REPORT = "export.json"
CARD = "README.md"


def write(
    partial: Path,
    source: ExportSource,
    spec: ExportSpec,
    metrics: Mapping[str, float],
    found: Mapping[str, Any],
    answers: tuple[str, str],
) -> None:
    """Write the card and the report beside the exported files.

    `found` is what the format's own checks found, and `answers` those before and after.
    """
    licence = base_licence(source.job.model)
    sample = {"prompt": source.prompt, "before": answers[0], "after": answers[1]}
    notes = list(found.get("notes", ()))
    if source.measured_part == "training":
        notes.append("Measured on training rows: the run has none for validation.")
    findings = ExportFindings(
        licence=licence,
        sample=sample if any(answers) else {},
        notes=notes,
        has_chat_template=bool(source.tokenizer.chat_template),
    )
    card = model_card.build_export_card(
        source.job.name, source.recipe, source.base, spec, metrics, findings
    )
    (partial / CARD).write_text(card, encoding="utf-8")
    facts = {
        "name": source.job.name,
        "format": EXPORT_FORMATS[spec.kind].title,
        "kind": spec.kind,
        "dtype": spec.dtype,
        "base_model": source.base,
        "base_licence": licence or None,
        "measured": {name: _plain(value) for name, value in metrics.items()},
        "measured_rows": source.measured_part,
        "sample": sample if any(answers) else None,
        "checks": dict(found),
        "files": [describe_file(path) for path in sorted(partial.iterdir()) if path.is_file()],
    }
    text = json.dumps(facts, ensure_ascii=False, indent=2)
    (partial / REPORT).write_text(text + "\n", encoding="utf-8")


def _plain(value: float) -> float | str:
    """Return a number that JSON has, or the name of one that it has not."""
    return value if math.isfinite(value) else str(value)


def describe_file(path: Path) -> dict[str, Any]:
    """Return a file's name, size and SHA-256."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"name": path.name, "bytes": path.stat().st_size, "sha256": digest}


def base_licence(location: str) -> str:
    """Return the licence that the card of a base model in a folder names; "" if none."""
    folder = Path(location)
    if not folder.is_dir():
        return ""
    with suppress(InvalidError, OSError):
        return model_metadata.read(folder).licence
    return ""
