"""The manifest of a run: one document that lets a person repeat it, and trust what came of it.

The runner writes it beside the files it is about; until then it can be told from the run's row.
What stands in it is decided here alone.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from studio.protocols.run_dir import DatasetFacts, JobSpec
from studio.schemas.field_docs import FieldDocs
from studio.weights import safetensors_headers


class _ManifestPart(FieldDocs, BaseModel):
    model_config = ConfigDict(frozen=True, ser_json_inf_nan="strings")


class BaseFacts(_ManifestPart):
    name: str
    """As the recipe names it: one of the studio's models, a folder, or a name on the hub."""
    revision: str = ""
    """Of a model from the hub: the commit that was fetched."""
    sha256: dict[str, str] = {}
    """Of a model in a folder: each file of weights, and its hash."""


class PrecisionFacts(_ManifestPart):
    requested: str
    chosen_by: Literal["user", "studio"] = "user"
    reason: str = ""
    """Why the studio chose it; empty where a user did."""
    resolved: dict[str, Any]
    """What was planned for this model, before it was loaded."""
    audited: dict[str, Any]
    """What was measured before the first step; equal to the plan, or the run would have ended."""
    rounded: dict[str, Any] | None = None
    """What loading the base model has rounded, measured on a sample; null where every weight
    stayed as it was saved."""


class FileFacts(_ManifestPart):
    name: str
    bytes: int
    sha256: str


class Manifest(_ManifestPart):
    """What was trained, on what, with what, and what came of it."""

    manifest_version: Literal[1] = 1
    run: int
    name: str
    attempt: int
    is_finished: bool = False
    """Whether it was trained to its end; if not, this is what is known so far."""
    recipe: dict[str, Any]
    recipe_sha256: str
    """Of the recipe as JSON, keys sorted, without spaces."""
    dataset: DatasetFacts | None
    """None where it was deleted before the run began."""
    base_model: BaseFacts
    precision: PrecisionFacts
    seed: int
    versions: dict[str, str]
    hardware: dict[str, str]
    metrics: dict[str, float]
    """The last value of each."""
    artifacts: list[FileFacts] = []
    """What the run has made; the manifest itself is left out."""


def build_manifest(
    spec: JobSpec,
    recipe: Mapping[str, Any],
    resolved: Mapping[str, Any],
    metrics: Mapping[str, float],
) -> Manifest:
    """Tell what is known of a run from its recipe, from its launch and from what it told."""
    return Manifest(
        run=spec.run_id,
        name=spec.name,
        attempt=spec.attempt,
        recipe=dict(recipe),
        recipe_sha256=_recipe_sha256(recipe),
        dataset=spec.dataset,
        base_model=BaseFacts(name=recipe["base_model"]),
        precision=PrecisionFacts(
            requested=recipe["precision"],
            chosen_by="studio" if spec.precision_reason else "user",
            reason=spec.precision_reason,
            resolved=resolved.get("plan", {}),
            audited=resolved.get("audit", {}),
            rounded=resolved.get("rounded"),
        ),
        seed=recipe["optimisation"]["seed"],
        versions=resolved.get("versions", {}),
        hardware={name: resolved[name] for name in ("device", "device_name") if name in resolved},
        metrics=dict(metrics),
    )


def finish_manifest(
    known: Manifest, *, location: str, revision: str | None, folder: Path
) -> Manifest:
    """Add what the end of a run tells: hashes of what it began with, and of what it made."""
    base = Path(location)
    weights = safetensors_headers.weight_files(base) if base.is_absolute() else []
    hashes = {path.name: file_sha256(path) for path in weights}
    changes = {
        "is_finished": True,
        "base_model": BaseFacts(name=known.base_model.name, revision=revision or "", sha256=hashes),
        "artifacts": list(_artifact_files(folder)),
    }
    return known.model_copy(update=changes)


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _artifact_files(folder: Path) -> Iterable[FileFacts]:
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = path.relative_to(folder).as_posix()
        yield FileFacts(name=name, bytes=path.stat().st_size, sha256=file_sha256(path))


def _recipe_sha256(recipe: Mapping[str, Any]) -> str:
    text = json.dumps(recipe, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()
