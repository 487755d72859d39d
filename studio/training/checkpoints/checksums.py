"""Seals: the proof that a folder is whole and as it was written.

    .name.partial/  ──▶  files on the disk  ──▶  MANIFEST.json  ──▶  name/
    hidden               fsync                   written last        one rename

A folder under its own name is therefore whole, however its writer ended; that it still is, years or
a failing disk later, its manifest tells: it knows the size and the hash of every file, and its own.
"""

import hashlib
import os
import shutil
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

MANIFEST = "MANIFEST.json"


class CorruptCheckpointError(Exception):
    """The folder is not what was sealed; the message says where it differs."""


class FileChecksum(BaseModel):
    model_config = ConfigDict(frozen=True)

    size: int
    sha256: str


class CheckpointManifest(BaseModel):
    """What was sealed, and by what."""

    model_config = ConfigDict(frozen=True)

    step: int
    best_step: int | None
    """The step with the best weights so far, where those are wanted."""
    recipe: Mapping[str, Any]
    versions: Mapping[str, str]
    files: Mapping[str, FileChecksum] = {}
    digest: str = ""
    """Over all of the above."""

    @property
    def size(self) -> int:
        return sum(entry.size for entry in self.files.values())

    def with_digest(self) -> "CheckpointManifest":
        text = self.model_dump_json(exclude={"digest"})
        return self.model_copy(update={"digest": hashlib.sha256(text.encode()).hexdigest()})


def commit_folder(folder: Path, place: Path, manifest: CheckpointManifest) -> CheckpointManifest:
    """Put a folder's files on the disk for good, seal it and move it to its place.

    Raises:
        OSError: the disk would not have it. Nothing has come to the place.

    """
    files = sorted(folder.iterdir())
    with ThreadPoolExecutor() as pool:
        flushed, hashed = pool.map(_sync_to_disk, files), pool.map(_checksum_file, files)
        list(flushed)
        entries = {file.name: entry for file, entry in zip(files, hashed, strict=True)}
    sealed = manifest.model_copy(update={"files": entries}).with_digest()
    (folder / MANIFEST).write_text(sealed.model_dump_json(indent=1) + "\n", encoding="utf-8")
    _sync_to_disk(folder / MANIFEST)
    _sync_to_disk(folder)
    remove_folder(place)
    folder.rename(place)
    _sync_to_disk(place.parent)
    return sealed


def verify_folder(folder: Path, *only: str) -> CheckpointManifest:
    """Hold every file of a sealed folder against its manifest, or only some that are needed.

    Raises:
        BrokenSealError: something is missing, cut short or changed.

    """
    manifest = read_manifest(folder)
    for name in only:
        if name not in manifest.files:
            raise CorruptCheckpointError(f"{name} was never in it")
    with ThreadPoolExecutor() as pool:
        names = only or manifest.files
        found = pool.map(lambda name: _find_problem(folder / name, manifest.files[name]), names)
        flaw = next((flaw for flaw in found if flaw), "")
    if flaw:
        raise CorruptCheckpointError(flaw)
    return manifest


def read_manifest(folder: Path) -> CheckpointManifest:
    """Read a manifest, and hold it against its own digest alone.

    Raises:
        BrokenSealError: there is none, or it was changed.

    """
    path = folder / MANIFEST
    try:
        manifest = CheckpointManifest.model_validate_json(path.read_bytes())
    except FileNotFoundError as error:
        raise CorruptCheckpointError("it was never finished") from error
    except (OSError, ValidationError) as error:
        raise CorruptCheckpointError(f"{path.name} is not readable") from error
    if manifest.with_digest() != manifest:
        raise CorruptCheckpointError(f"{path.name} is not as it was written")
    return manifest


def remove_folder(folder: Path) -> None:
    """Delete a folder, if it is there: killed in the middle of it, no half stays under its name."""
    if not folder.exists():
        return
    hidden = folder.with_name(f".{folder.name}.removed")
    shutil.rmtree(hidden, ignore_errors=True)
    folder.rename(hidden)
    shutil.rmtree(hidden, ignore_errors=True)


def _find_problem(path: Path, entry: FileChecksum) -> str:
    try:
        if path.stat().st_size != entry.size:
            return f"{path.name} has another length than it was written with"
        is_same = _checksum_file(path) == entry
    except FileNotFoundError:
        return f"{path.name} is missing"
    except OSError as error:
        return f"{path.name} cannot be read ({error.strerror})"
    return "" if is_same else f"{path.name} is not as it was written"


def _checksum_file(path: Path) -> FileChecksum:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return FileChecksum(size=path.stat().st_size, sha256=digest)


def _sync_to_disk(path: Path) -> None:
    """Wait until a file, or a folder's list of files, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
