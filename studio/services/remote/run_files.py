"""The files that a run needs on another machine: by their path there, their hash and their size.

    model/…  teacher/…  data/train.jsonl  data/images/…  judge-0-model/…   what it reads
    run/…                                                                 its own folder, to resume

Only folders that the run's job names are sent.
"""

import hashlib
import json
import threading
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from studio.db.tables import Run
from studio.errors import FilesLostError, NotFoundError
from studio.intake.images.image_files import IMAGES
from studio.protocols.judging import RewardJudge
from studio.protocols.remote_worker import INPUT_PREFIX, RUN_ROOT, RemoteFile, RunFiles, check_path
from studio.protocols.run_dir import JobSpec, RunDir
from studio.services.runs import artifacts

_HASHED_AT_ONCE = 2**20
_JUDGE_FOLDERS = ("model", "adapter", "weights", "tokenizer")
"""The fields of a reward model's request that may be folders."""

_CHECKPOINTS_SENT = 2
"""Of the newest checkpoints; the newest may be incomplete."""

_INDEXED_ATTEMPTS = 16


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file; remembered as long as the file does not change."""
    status = path.stat()
    return _hash_version(path, status.st_size, status.st_mtime_ns, status.st_ino)


@lru_cache(maxsize=100_000)
def _hash_version(path: Path, _size: int, _changed_at: int, _inode: int) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_HASHED_AT_ONCE):
            digest.update(chunk)
    return digest.hexdigest()


@dataclass(slots=True)
class _Inputs:
    """Which files have which path on the other machine."""

    paths: dict[str, Path] = field(default_factory=dict)

    def add_folder(self, name: str, location: str) -> str:
        """Add a folder; return what the job says in its place. A name on the hub stays."""
        root = Path(location)
        if not location or not root.is_absolute():
            return location
        for path in _list_files(root):
            self._add(f"{name}/{path.relative_to(root).as_posix()}", path)
        return INPUT_PREFIX + name

    def add_file(self, name: str, path: Path) -> Path:
        self._add(name, path)
        return Path(INPUT_PREFIX + name)

    def add_judge(self, number: int, judge: RewardJudge) -> RewardJudge:
        folders = {
            name: self.add_folder(f"judge-{number}-{name}", getattr(judge.model, name))
            for name in _JUDGE_FOLDERS
        }
        return judge.model_copy(update={"model": judge.model.model_copy(update=folders)})

    def _add(self, name: str, path: Path) -> None:
        try:
            self.paths[check_path(name)] = path
        except ValueError as error:
            raise FilesLostError(
                f"The file {path.name} has a name that cannot be sent to another machine.",
                hint="Rename it, then start the run again.",
            ) from error


def _list_files(root: Path) -> Iterator[Path]:
    return (path for path in sorted(root.rglob("*")) if path.is_file())


def _map_job(spec: JobSpec, folder: RunDir, inputs: _Inputs) -> dict[str, Any]:
    """Return the job for another machine; adds the files that it names."""
    judges = enumerate(sorted(spec.reward_models.items()))
    changes: dict[str, Any] = {
        "model": inputs.add_folder("model", spec.model),
        "teacher": inputs.add_folder("teacher", spec.teacher),
        "train": inputs.add_file("data/train.jsonl", spec.train),
        "reward_models": {name: inputs.add_judge(i, judge) for i, (name, judge) in judges},
        "cache": None,
    }
    inputs.add_folder(f"data/{IMAGES}", str(spec.train.parent / IMAGES))
    if spec.validation is not None:
        changes["validation"] = inputs.add_file("data/validation.jsonl", spec.validation)
    if spec.adapter is not None:
        name = f"{RUN_ROOT}/{folder.parent_adapter.name}"
        changes["adapter"] = inputs.add_folder(name, str(spec.adapter))
    mapped: dict[str, Any] = json.loads(spec.model_copy(update=changes).model_dump_json())
    return mapped


def _add_run_folder(spec: JobSpec, folder: RunDir, inputs: _Inputs) -> None:
    """Add what the run has written so far: events are numbered on, and training resumes."""
    kept = [folder.events.path]
    if spec.resume:
        kept += [folder.rollouts, folder.adapter_start]
        newest = artifacts.list_checkpoints(folder.checkpoints)[:_CHECKPOINTS_SENT]
        for root in (folder.tokenizer, *(folder.checkpoints / one.name for one in newest)):
            kept += [root / file.name for file in artifacts.list_files(root)]
    for path in kept:
        if path.is_file():
            inputs.add_file(f"{RUN_ROOT}/{path.relative_to(folder.root).as_posix()}", path)


def _collect(folder: RunDir) -> tuple[str, dict[str, Path]]:
    inputs = _Inputs()
    spec = JobSpec.read(folder)
    job = _map_job(spec, folder, inputs)
    _add_run_folder(spec, folder, inputs)
    return json.dumps(job), inputs.paths


@dataclass(slots=True)
class InputIndex:
    """Finds the files of attempts by their hash. Shared by all requests."""

    _attempts: OrderedDict[tuple[int, int], dict[str, Path]] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def describe(self, run: Run, folder: RunDir) -> RunFiles:
        """Return what the run needs. Reads each file that was not hashed yet.

        Raises:
            FilesLostError: a file is gone.

        """
        try:
            job, paths = _collect(folder)
            hashes = {name: hash_file(path) for name, path in paths.items()}
            files = [
                RemoteFile(path=name, sha256=hashes[name], bytes=path.stat().st_size)
                for name, path in paths.items()
            ]
            log_offset = folder.log.stat().st_size if folder.log.exists() else 0
            recipe = folder.recipe.read_text(encoding="utf-8")
        except FileNotFoundError as error:
            raise FilesLostError(
                f"A file of run {run.id} is gone: {Path(str(error.filename)).name}.",
                hint="Start a new run with models and data that exist.",
            ) from error
        found = {hashes[name]: path for name, path in paths.items()}
        with self._lock:
            self._attempts[_key(run)] = found
            while len(self._attempts) > _INDEXED_ATTEMPTS:
                self._attempts.popitem(last=False)
        return RunFiles(job=job, recipe=recipe, files=files, log_offset=log_offset)

    def find(self, run: Run, folder: RunDir, sha256: str) -> Path:
        """Return the file with a hash.

        Raises:
            FilesLostError: a file of the run is gone.
            NotFoundError: the run needs no such file.

        """
        with self._lock:
            found = self._attempts.get(_key(run), {}).get(sha256)
        if found is None:
            self.describe(run, folder)
            with self._lock:
                found = self._attempts.get(_key(run), {}).get(sha256)
        if found is None or not found.is_file():
            raise NotFoundError(
                "The run needs no file with this hash.", hint="List its files again."
            )
        return found


def _key(run: Run) -> tuple[int, int]:
    return run.id or 0, run.attempt
