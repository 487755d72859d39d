"""Folders that arrive from another machine: file by file, by hash, then all at once in their place.

    <run>/.incoming-<attempt>/<sha256>.part   <sha256>

A file has its hash as its name only once its bytes have that hash. A folder is in place complete or
not at all.
"""

import fcntl
import hashlib
import os
import shutil
from collections.abc import Collection
from pathlib import Path
from uuid import uuid4

from studio import files
from studio.errors import ConflictError, DiskFullError, InvalidError, TooLargeError
from studio.protocols.remote_worker import (
    BUSY,
    FolderAnswer,
    FolderRequest,
    MissingFile,
    RemoteFile,
    UploadAnswer,
)
from studio.protocols.run_dir import RunDir
from studio.services.remote.run_files import hash_file
from studio.services.storage import atomic_dirs

_PREFIX = ".incoming-"
_EMPTY = hashlib.sha256(b"").hexdigest()
_SPARE_BYTES = 64 * 2**20
"""What a folder must leave free on the disk."""


class BusyError(ConflictError):
    """An earlier request still writes to the file."""

    code = BUSY


def incoming(folder: RunDir, attempt: int) -> Path:
    return folder.root / f"{_PREFIX}{attempt}"


def discard_incoming(folder: RunDir) -> None:
    """Delete what has arrived for the folders of earlier attempts."""
    for path in folder.root.glob(f"{_PREFIX}*"):
        shutil.rmtree(path, ignore_errors=True)


def receive(folder: RunDir, attempt: int, request: FolderRequest) -> FolderAnswer:
    """Put a folder in its place if all its files have arrived; return which have not.

    Raises:
        DiskFullError: there is no space for them.
        InvalidError: the files cannot be in one folder.

    """
    if request.name in _SINGLE_FILES and len(request.files) > 1:
        raise InvalidError(f"{request.name} is one file.", param="files")
    done = incoming(folder, attempt) / f"{_digest(request)}.placed"
    if done.exists() and (folder.root / request.name).exists():
        return FolderAnswer(missing=[])  # The answer to the first call was lost.
    answer = _list_missing(folder, attempt, request.files)
    if not answer.missing:
        try:
            _place(folder, attempt, request)
        except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
            raise InvalidError("Two files of the folder have one path.", param="files") from error
        done.touch()
    return answer


def _digest(request: FolderRequest) -> str:
    return hashlib.sha256(request.model_dump_json(exclude={"checkpoints"}).encode()).hexdigest()


def _list_missing(folder: RunDir, attempt: int, wanted: Collection[RemoteFile]) -> FolderAnswer:
    arrived = incoming(folder, attempt)
    unique = {one.sha256: one for one in wanted}
    missing = [
        (one, _size(arrived / f"{one.sha256}.part"))
        for one in unique.values()
        if not (arrived / one.sha256).is_file() and one.sha256 != _EMPTY
    ]
    needed = sum(one.bytes - offset for one, offset in missing)
    if missing and needed + _SPARE_BYTES > shutil.disk_usage(folder.root).free:
        raise DiskFullError(
            f"The studio's disk has no space for {needed / 1e9:,.1f} GB of this run.",
            hint="Delete old runs or models; the worker tries again.",
        )
    parts = [MissingFile(sha256=one.sha256, offset=offset) for one, offset in missing]
    return FolderAnswer(missing=parts)


def append(arrived_dir: Path, sha256: str, offset: int, size: int, data: bytes) -> UploadAnswer:
    """Append bytes to a file that arrives; return how many have arrived.

    Bytes that are not the next ones are dropped, as is a file that does not have its hash.

    Raises:
        BusyError: another request is writing to it.
        DiskFullError: the disk is full.
        TooLargeError: there are more bytes than its size.

    """
    if (arrived_dir / sha256).is_file():
        return UploadAnswer(offset=size, is_whole=True)
    part = arrived_dir / f"{sha256}.part"
    with atomic_dirs.explain_disk_full():
        arrived_dir.mkdir(mode=0o700, exist_ok=True)
        with part.open("ab", buffering=0) as file:
            _lock(file.fileno())
            arrived = os.fstat(file.fileno()).st_size
            if offset != arrived:
                return UploadAnswer(offset=arrived, is_whole=False)
            if offset + len(data) > size:
                raise TooLargeError(f"The file exceeds its announced size of {size} bytes.")
            remaining = memoryview(data)
            while remaining:
                remaining = remaining[file.write(remaining) :]
            if offset + len(data) < size:
                return UploadAnswer(offset=offset + len(data), is_whole=False)
            os.fsync(file.fileno())
            if hash_file(part) != sha256:
                part.unlink()
                return UploadAnswer(offset=0, is_whole=False)
            part.rename(arrived_dir / sha256)
    return UploadAnswer(offset=size, is_whole=True)


def _place(folder: RunDir, attempt: int, request: FolderRequest) -> None:
    arrived, target = incoming(folder, attempt), folder.root / request.name
    with atomic_dirs.explain_disk_full():
        arrived.mkdir(mode=0o700, exist_ok=True)
        stage = arrived / uuid4().hex
        for file in request.files:
            _place_file(arrived / file.sha256, stage / file.path)
        target.parent.mkdir(exist_ok=True)
        if request.name in _SINGLE_FILES:
            next(path for path in stage.rglob("*") if path.is_file()).replace(target)
        else:
            files.sync_folder(stage)
            atomic_dirs.move_into_place(stage, target)
        shutil.rmtree(stage, ignore_errors=True)
        for file in request.files:
            (arrived / file.sha256).unlink(missing_ok=True)
    if request.checkpoints is not None:
        _prune_checkpoints(folder, {*request.checkpoints, target.name})


_SINGLE_FILES = frozenset({"rollouts.jsonl", "adapter_start.safetensors"})


def _place_file(blob: Path, path: Path) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if blob.name == _EMPTY:
        path.touch()
    else:
        # Two files of a folder may have the same content; training may change only one of them.
        shutil.copyfile(blob, path) if blob.stat().st_nlink > 1 else os.link(blob, path)


def _prune_checkpoints(folder: RunDir, kept: Collection[str]) -> None:
    for path in folder.checkpoints.glob("checkpoint-*"):
        if path.name not in kept:
            shutil.rmtree(path, ignore_errors=True)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _lock(file: int) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise BusyError("Another part is being written.", hint="Try again.") from error
