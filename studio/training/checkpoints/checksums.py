"""Checksums that prove a folder is complete and unchanged.

    .name.partial/  ──▶  files on the disk  ──▶  MANIFEST.json  ──▶  name/
    hidden               fsync                   written last        one rename

A folder under its final name is therefore complete, however its writer ended. Its manifest shows
whether it still is, years or a failing disk later: it holds the size and hash of every file, and a
digest of itself.
"""

import hashlib
import shutil
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from studio import files

MANIFEST = "MANIFEST.json"


class CorruptCheckpointError(Exception):
    """The folder differs from its manifest; the message explains how."""


class FileChecksum(BaseModel):
    model_config = ConfigDict(frozen=True)

    size: int
    sha256: str


class CheckpointManifest(BaseModel):
    """The contents of a folder and the software that wrote it."""

    model_config = ConfigDict(frozen=True)

    step: int
    best_step: int | None
    """The step with the best weights so far, if best weights are kept."""
    recipe: Mapping[str, Any]
    versions: Mapping[str, str]
    files: Mapping[str, FileChecksum] = {}
    digest: str = ""
    """Hash over all of the above."""

    @property
    def size(self) -> int:
        return sum(entry.size for entry in self.files.values())

    def with_digest(self) -> "CheckpointManifest":
        text = self.model_dump_json(exclude={"digest"})
        return self.model_copy(update={"digest": hashlib.sha256(text.encode()).hexdigest()})


def commit_folder(folder: Path, target: Path, manifest: CheckpointManifest) -> CheckpointManifest:
    """Sync a folder's files to disk, write its manifest and move it to its place.

    Raises:
        OSError: the disk failed or is full. Nothing was put in the place.

    """
    written = sorted(folder.iterdir())
    with ThreadPoolExecutor() as pool:
        flushed, hashed = pool.map(files.sync, written), pool.map(_checksum_file, written)
        list(flushed)
        entries = {file.name: entry for file, entry in zip(written, hashed, strict=True)}
    complete_manifest = manifest.model_copy(update={"files": entries}).with_digest()
    (folder / MANIFEST).write_text(
        complete_manifest.model_dump_json(indent=1) + "\n", encoding="utf-8"
    )
    files.sync(folder / MANIFEST)
    files.sync(folder)
    remove_folder(target)
    folder.rename(target)
    files.sync(target.parent)
    return complete_manifest


def verify_folder(folder: Path, *only: str) -> CheckpointManifest:
    """Verify every file of a folder against its manifest, or only the files named.

    Raises:
        CorruptCheckpointError: a file is missing, truncated or changed.

    """
    manifest = read_manifest(folder)
    for name in only:
        if name not in manifest.files:
            raise CorruptCheckpointError(f"{name} was never part of it")
    with ThreadPoolExecutor() as pool:
        names = only or manifest.files
        problems = pool.map(lambda name: _find_problem(folder / name, manifest.files[name]), names)
        problem = next((problem for problem in problems if problem), "")
    if problem:
        raise CorruptCheckpointError(problem)
    return manifest


def read_manifest(folder: Path) -> CheckpointManifest:
    """Read a manifest and verify only its own digest.

    Raises:
        CorruptCheckpointError: the manifest is missing or was changed.

    """
    path = folder / MANIFEST
    try:
        manifest = CheckpointManifest.model_validate_json(path.read_bytes())
    except FileNotFoundError as error:
        raise CorruptCheckpointError("it was never completed") from error
    except (OSError, ValidationError) as error:
        raise CorruptCheckpointError(f"{path.name} cannot be read") from error
    if manifest.with_digest() != manifest:
        raise CorruptCheckpointError(f"{path.name} has changed since it was written")
    return manifest


def remove_folder(folder: Path) -> None:
    """Delete a folder if it exists, renaming it first so that a kill never leaves half of it."""
    if not folder.exists():
        return
    hidden = folder.with_name(f".{folder.name}.removed")
    shutil.rmtree(hidden, ignore_errors=True)
    folder.rename(hidden)
    shutil.rmtree(hidden, ignore_errors=True)


def _find_problem(path: Path, entry: FileChecksum) -> str:
    try:
        if path.stat().st_size != entry.size:
            return f"{path.name} has a different length than when it was written"
        is_same = _checksum_file(path) == entry
    except FileNotFoundError:
        return f"{path.name} is missing"
    except OSError as error:
        return f"{path.name} cannot be read ({error.strerror})"
    return "" if is_same else f"{path.name} has changed since it was written"


def _checksum_file(path: Path) -> FileChecksum:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return FileChecksum(size=path.stat().st_size, sha256=digest)
