"""The manifest of a run: one document with everything needed to reproduce and verify it.

The runner writes it next to the files it describes; until then it is built from the run's row.
This module alone decides its content.
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
    """The model as named in the recipe: one of the studio's models, a folder, or a hub name."""
    revision: str = ""
    """For a model from the hub: the commit that was downloaded."""
    sha256: dict[str, str] = {}
    """For a model in a folder: the checksum of each weight file."""


class PrecisionFacts(_ManifestPart):
    requested: str
    chosen_by: Literal["user", "studio"] = "user"
    reason: str = ""
    """Why the studio chose the precision; empty if a user chose it."""
    resolved: dict[str, Any]
    """The formats planned for this model before it was loaded."""
    audited: dict[str, Any]
    """The formats measured before the first step; a run whose audit differs from the plan fails."""
    rounded: dict[str, Any] | None = None
    """The rounding error of loading the base model, measured on a sample; null if every weight kept
    its saved format."""


class FileFacts(_ManifestPart):
    name: str
    bytes: int
    sha256: str


class PublishedFacts(_ManifestPart):
    """An export of the run on the Hugging Face hub."""

    export: int
    repo: str
    revision: str
    """The commit."""
    private: bool
    at: str | None = None


class Manifest(_ManifestPart):
    """The recipe, data, model, environment and results of a run."""

    manifest_version: Literal[1] = 1
    run: int
    name: str
    attempt: int
    is_finished: bool = False
    """Whether training finished; if not, the manifest is preliminary."""
    recipe: dict[str, Any]
    recipe_sha256: str
    """The checksum of the recipe as JSON with sorted keys and no spaces."""
    dataset: DatasetFacts | None
    """None if it was deleted before the run started."""
    base_model: BaseFacts
    teacher: BaseFacts | None = None
    """The model that it learned from, besides its data; null for most methods."""
    precision: PrecisionFacts
    seed: int
    versions: dict[str, str]
    hardware: dict[str, str]
    metrics: dict[str, float]
    """The last value of each metric."""
    artifacts: list[FileFacts] = []
    """The files that the run produced, without the manifest."""
    published: list[PublishedFacts] = []
    """Where its exports have been uploaded since."""


def build_manifest(
    spec: JobSpec,
    recipe: Mapping[str, Any],
    resolved: Mapping[str, Any],
    metrics: Mapping[str, float],
) -> Manifest:
    """Build the preliminary manifest of a run from its recipe, job spec and reported results."""
    teacher = recipe.get("distillation", {}).get("teacher")
    return Manifest(
        run=spec.run_id,
        name=spec.name,
        attempt=spec.attempt,
        recipe=dict(recipe),
        recipe_sha256=_recipe_sha256(recipe),
        dataset=spec.dataset,
        base_model=BaseFacts(name=recipe["base_model"]),
        teacher=BaseFacts(name=teacher) if teacher else None,
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
    manifest: Manifest, *, location: str, revision: str | None, folder: Path, teacher: str = ""
) -> Manifest:
    """Complete the manifest of a finished run: add checksums of its models and artifacts.

    `location` and `teacher` are where the base model and the teacher are.
    """
    own = {"revision": revision or "", "sha256": _weight_hashes(location)}
    changes = {
        "is_finished": True,
        "base_model": manifest.base_model.model_copy(update=own),
        "artifacts": list(_artifact_files(folder)),
    }
    if manifest.teacher is not None:
        hashes = {"sha256": _weight_hashes(teacher)}
        changes["teacher"] = manifest.teacher.model_copy(update=hashes)
    return manifest.model_copy(update=changes)


def _weight_hashes(location: str) -> dict[str, str]:
    """Return the checksums of a model's weights; none if it is not in a folder."""
    folder = Path(location)
    weights = safetensors_headers.weight_files(folder) if folder.is_absolute() else []
    return {path.name: file_sha256(path) for path in weights}


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
