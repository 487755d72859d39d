"""The input files of a run: fetched by hash, kept for later runs, and laid out as its job says.

<home>/cache/inputs/<sha256>   each file once, whatever it is called
<run>/inputs/model/…           links to these
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from studio import files
from studio.errors import UnavailableError
from studio.protocols.remote_worker import (
    INPUT_PREFIX,
    RUN_ROOT,
    AttemptRef,
    RemoteFile,
    RunFiles,
    check_path,
)
from studio.protocols.run_dir import RunDir
from studio.services.remote.run_files import hash_file
from studio.services.storage import atomic_dirs
from studio.settings import Settings
from studio.worker.remote.connection import StudioConnection

_FOLDER = "inputs"
_EMPTY = hashlib.sha256(b"").hexdigest()
_SPARE_BYTES = 64 * 2**20


@dataclass(slots=True)
class InputCache:
    """Files by their hash. A file has its hash as its name only once its bytes have that hash."""

    folder: Path
    connection: StudioConnection

    def fetch(self, ref: AttemptRef, file: RemoteFile, check: Callable[[], None]) -> Path:
        """Return a file, downloaded if it is not here. `check` may end the download.

        Raises:
            DiskFullError: the disk is full.
            StudioAwayError: the studio did not send all of it; what came is kept.
            UnavailableError: what came is something else.

        """
        path = self.folder / file.sha256
        if path.is_file() and path.stat().st_size == file.bytes:
            return path
        part = path.with_suffix(".part")
        with atomic_dirs.explain_disk_full():
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if file.sha256 == _EMPTY:
                part.touch()
            while (arrived := part.stat().st_size if part.exists() else 0) < file.bytes:
                self._download(ref, file, part, check)
                if part.stat().st_size == arrived:
                    break
            if hash_file(part) != file.sha256:
                part.unlink()
                raise UnavailableError(
                    f"The file {file.path} arrived with other bytes than the studio has.",
                    hint="It may have changed meanwhile. Start the run again.",
                )
            files.sync(part)
            part.rename(path)
        return path

    def _download(
        self, ref: AttemptRef, file: RemoteFile, part: Path, check: Callable[[], None]
    ) -> None:
        offset = part.stat().st_size if part.exists() else 0
        with (
            part.open("ab") as target,
            self.connection.download(ref, file.sha256, offset) as chunks,
        ):
            for chunk in chunks:
                check()
                target.write(chunk)
                if target.tell() > file.bytes:
                    break


@dataclass(slots=True)
class RunLayout:
    """Lays the files of a run out in its folder."""

    folder: RunDir
    settings: Settings
    cache: InputCache

    def write(self, ref: AttemptRef, needed: RunFiles, check: Callable[[], None]) -> None:
        """Fetch what a run needs, and write its folder.

        Raises:
            DiskFullError: the disk is full.
            StudioAwayError: the studio did not send all of it.
            UnavailableError: a file arrived with other bytes.

        """
        with atomic_dirs.explain_disk_full():
            self.folder.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            for file in needed.files:
                check()
                self._lay_out(self.cache.fetch(ref, file, check), file)
            self._forget_run_files(needed)
            self.folder.command.unlink(missing_ok=True)
            self.folder.recipe.write_text(needed.recipe, encoding="utf-8")
            files.replace_text(self.folder.job, self._job(needed.job))

    def _lay_out(self, blob: Path, file: RemoteFile) -> None:
        path = self._place_of(file.path)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        if file.path.startswith(f"{RUN_ROOT}/"):
            shutil.copyfile(blob, path)  # the run writes on
        else:
            os.link(blob, path)

    def _forget_run_files(self, needed: RunFiles) -> None:
        """Delete what only this run will ever need from the cache."""
        shared = {one.sha256 for one in needed.files if not _is_of_run(one)}
        for one in needed.files:
            if one.sha256 not in shared:
                (self.cache.folder / one.sha256).unlink(missing_ok=True)

    def _place_of(self, path: str) -> Path:
        root, _, rest = check_path(path).partition("/")
        if root == RUN_ROOT:
            return self.folder.root / rest
        return self.folder.root / _FOLDER / path

    def _job(self, text: str) -> str:
        """Return the job with the places of its files, and with what this machine decides."""
        job = json.loads(text)
        located: dict[str, Any] = self._locate(job)
        own = {"cache": str(self.settings.cache), "python_graders": self.settings.python_graders}
        return json.dumps(located | own, indent=2)

    def _locate(self, value: Any) -> Any:  # noqa: ANN401 -- any JSON
        match value:
            case dict():
                return {key: self._locate(item) for key, item in value.items()}
            case list():
                return [self._locate(item) for item in value]
            case str() if value.startswith(INPUT_PREFIX):
                return str(self._place_of(value.removeprefix(INPUT_PREFIX)))
        return value


def _is_of_run(file: RemoteFile) -> bool:
    return file.path.startswith(f"{RUN_ROOT}/")
