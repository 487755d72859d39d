"""Download a model from the hub: only the files it needs, verified, all or nothing.

Files are downloaded to the task's folder and moved to the models once each matches the hub's
checksum. An interrupted download resumes: the next try finds the same partial files.
"""

import hashlib
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
from pydantic import BaseModel, ConfigDict

from studio.errors import DiskFullError, InvalidError, UnavailableError
from studio.methods import model_compatibility
from studio.network.hub_client import Hub, HubFile, HubModel
from studio.protocols.tasks import TaskDir
from studio.runner.execution import ReportProgress
from studio.settings import Settings
from studio.weights import model_facts, model_files, model_metadata
from studio.weights.model_metadata import HubOrigin

MAX_STALLED_TRIES = 5
"""How many tries in a row may bring no more of a file."""
_GIGA = 1e9
RESERVED_DISK_BYTES = 256 * 2**20
"""Disk space that must stay free."""


class DownloadRequest(BaseModel):
    """What to download."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    repo: str
    commit: str
    name: str
    """The model's name in the studio."""
    code: bool = False
    """Whether to download only the code of a model that is already here."""


def download(folder: TaskDir, params: dict[str, Any], report: ReportProgress) -> dict[str, Any]:
    """Download a model or its code. Return its location and origin.

    Raises:
        StudioError: the model cannot be downloaded, or does not match the hub.

    """
    request, settings = DownloadRequest.model_validate(params), Settings()
    hub = Hub(endpoint=settings.hub_endpoint, token=settings.hub_token.get_secret_value())
    target = settings.models / model_metadata.folder_name(request.repo, request.commit)
    report("contacting the hub", None)
    listing = hub.model_info(request.repo, request.commit)
    downloader = Downloader(hub, listing, request.commit, folder.files, report)
    if request.code:
        code = [file for file in listing.files if model_files.is_code(file.name)]
        _refuse_large_files(code)
        downloader.download_all(code)
        for path in folder.files.glob("*.py"):
            path.replace(target / path.name)
    elif model_metadata.read_origin(target) is None:
        _download_model(downloader, request, target)
    return {"location": str(target), "repo": listing.id, "code": model_files.read(target).sha256}


def _download_model(downloader: "Downloader", request: DownloadRequest, target: Path) -> None:
    stage, names = downloader.stage, downloader.listing.file_names
    model_files.check_hub_files(downloader.listing.id, names)
    files_by_name = {file.name: file for file in downloader.listing.files}
    files = [files_by_name[name] for name in model_files.files_to_download(names)]
    _refuse_large_files(files)
    refuse_if_disk_full(stage, files)
    downloader.set_total(files)
    small_files = [file for file in files if not model_files.is_weights(file.name)]
    downloader.download_all(small_files)
    # These files may rule the model out before anything large is downloaded.
    facts = model_facts.from_config(stage)
    model_compatibility.refuse_untrainable(facts.kind, facts.family, "source.id")
    model_metadata.read(stage)
    downloader.download_all([file for file in files if file not in small_files])
    downloader.report("checking the files", 1.0)
    model_facts.read(stage)
    hashes = {file.name: file.sha256 or file.git for file in files}
    model_metadata.write_origin(
        stage, HubOrigin(repo=downloader.listing.id, commit=request.commit, files=hashes)
    )
    # An existing folder is incomplete, or it would have been found.
    shutil.rmtree(target, ignore_errors=True)
    stage.replace(target)


def _refuse_large_files(files: list[HubFile]) -> None:
    for file in files:
        limit = model_files.max_bytes(file.name)
        if limit is not None and file.size > limit:
            raise InvalidError(f"{file.name} is unreasonably large: {_format_size(file.size)}.")


def refuse_if_disk_full(stage: Path, files: list[HubFile]) -> None:
    """Refuse files that would fill the disk, less what has been downloaded.

    Raises:
        DiskFullError: there is not enough free space.

    """
    size = sum(file.size for file in files)
    downloaded = sum(file.stat().st_size for file in stage.iterdir())
    free = shutil.disk_usage(stage).free
    if size - downloaded + RESERVED_DISK_BYTES > free:
        raise DiskFullError(
            f"This model needs {_format_size(size - downloaded)}, but only {_format_size(free)} "
            "are free.",
            hint="Delete models or runs that you no longer need, then try again.",
        )


@dataclass(slots=True)
class Downloader:
    """Downloads files of one commit to a folder and reports the overall progress."""

    hub: Hub
    listing: HubModel
    commit: str
    stage: Path
    report: ReportProgress
    pause: Callable[[float], None] = time.sleep
    total: int = field(default=0, init=False)
    done: int = field(default=0, init=False)

    def set_total(self, files: list[HubFile]) -> None:
        """Set the total size from which progress is computed."""
        self.total = sum(file.size for file in files)

    def download_all(self, files: list[HubFile]) -> None:
        for file in files:
            if not (self.stage / file.name).exists():
                self._download_file(file)
            self.done += file.size
            self._report(0)

    def _download_file(self, file: HubFile) -> None:
        """Download a file; if it does not match the hub, download it once more from the start."""
        part = self.stage / f"{file.name}.part"
        for _ in range(2):
            self._download_with_retries(file, part)
            if _matches_hub(part, file):
                part.replace(self.stage / file.name)
                return
            part.unlink()
        raise InvalidError(
            f"{file.name} does not match its checksum on the hub.",
            hint="A proxy may have changed it, or the hub may be wrong. Try again later.",
        )

    def _download_with_retries(self, file: HubFile, part: Path) -> None:
        """Download the rest of a file, retrying as long as data arrives."""
        tries = 0
        while (downloaded := _file_size(part)) < file.size or not part.exists():
            try:
                self._stream(file, part, downloaded)
            except (httpx2.TransportError, UnavailableError) as error:
                tries = tries + 1 if _file_size(part) == downloaded else 0
                if tries >= MAX_STALLED_TRIES:
                    raise UnavailableError(
                        f"{self.hub.host} keeps interrupting the download of {file.name}.",
                        hint="Try again later: the download will resume.",
                    ) from error
                self.pause(2.0**tries - 1)

    def _stream(self, file: HubFile, part: Path, downloaded: int) -> None:
        with self.hub.open(self.listing.id, self.commit, file, downloaded) as response:
            # A server without support for ranges sends the whole file again.
            resumes = response.status_code == httpx2.codes.PARTIAL_CONTENT
            with part.open("ab" if resumes else "wb") as out:
                downloaded = downloaded if resumes else 0
                for chunk in response.iter_bytes():
                    out.write(chunk)
                    downloaded += len(chunk)
                    self._report(downloaded)
                    if downloaded > file.size:
                        break
        if downloaded < file.size:
            raise httpx2.ReadError("The connection closed early.")

    def _report(self, downloaded: int) -> None:
        if self.total:
            phase = (
                f"downloaded {_format_size(self.done + downloaded)} of {_format_size(self.total)}"
            )
            self.report(phase, min(1.0, (self.done + downloaded) / self.total))


def _matches_hub(path: Path, file: HubFile) -> bool:
    """Whether a file matches the hub's checksum: SHA-256 for large files, else git's."""
    if not (file.sha256 or file.git) or _file_size(path) != file.size:
        return False
    digest = hashlib.sha256() if file.sha256 else hashlib.sha1(usedforsecurity=False)
    if not file.sha256:
        digest.update(f"blob {file.size}\0".encode())
    with path.open("rb") as opened:
        hashlib.file_digest(opened, lambda: digest)
    return digest.hexdigest() == (file.sha256 or file.git)


def _file_size(path: Path) -> int:
    with suppress(FileNotFoundError):
        return path.stat().st_size
    return 0


def _format_size(size: int) -> str:
    return f"{size / _GIGA:,.1f} GB" if size >= _GIGA else f"{size / 1e6:,.1f} MB"
