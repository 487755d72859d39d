"""Download a model from the hub: only the files it needs, verified, all or nothing.

Files are downloaded to the task's folder and moved to the models once each matches the hub's
checksum. An interrupted download resumes: the next try finds the same partial files.
"""

import hashlib
import shutil
import time
from collections.abc import Callable, Iterator
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
from studio.settings import Settings
from studio.weights import download_filter, hub_origin, model_code, model_facts, model_metadata
from studio.weights.hub_origin import HubOrigin

ReportProgress = Callable[[str, float | None], None]

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


def download(folder: TaskDir, params: dict[str, Any], tell: ReportProgress) -> dict[str, Any]:
    """Download a model or its code. Return its location and origin.

    Raises:
        StudioError: the model cannot be downloaded, or does not match the hub.

    """
    wish, settings = DownloadRequest.model_validate(params), Settings()
    hub = Hub(endpoint=settings.hub_endpoint, token=settings.hub_token.get_secret_value())
    target = settings.models / hub_origin.folder_name(wish.repo, wish.commit)
    tell("contacting the hub", None)
    found = hub.model_info(wish.repo, wish.commit)
    fetch = Downloader(hub, found, wish.commit, folder.files, tell)
    if wish.code:
        fetch.download_all([one for one in found.files if download_filter.is_code(one.name)])
        for path in folder.files.glob("*.py"):
            path.replace(target / path.name)
    elif hub_origin.read(target) is None:
        _download_model(fetch, wish, target)
    return {"location": str(target), "repo": found.id, "code": model_code.read(target).sha256}


def _download_model(fetch: "Downloader", wish: DownloadRequest, target: Path) -> None:
    stage, names = fetch.stage, fetch.listing.file_names
    download_filter.check_hub_files(fetch.listing.id, names)
    wanted = {one.name: one for one in fetch.listing.files}
    files = [wanted[name] for name in download_filter.files_to_download(names)]
    _refuse_large_files(files)
    refuse_if_disk_full(stage, files)
    fetch.set_total(files)
    beside = [one for one in files if not download_filter.is_weights(one.name)]
    fetch.download_all(beside)
    # These files may rule the model out before anything large is downloaded.
    said = model_facts.from_config(stage)
    model_compatibility.refuse_untrainable(said.kind, said.family, "source.id")
    model_metadata.read(stage)
    fetch.download_all([one for one in files if one not in beside])
    fetch.report("checking the files", 1.0)
    model_facts.read(stage)
    hashes = {one.name: one.sha256 or one.git for one in files}
    hub_origin.write(stage, HubOrigin(repo=fetch.listing.id, commit=wish.commit, files=hashes))
    # An existing folder is incomplete, or it would have been found.
    shutil.rmtree(target, ignore_errors=True)
    stage.replace(target)


def _refuse_large_files(files: list[HubFile]) -> None:
    for one in files:
        if (
            not download_filter.is_weights(one.name)
            and one.size > download_filter.MAX_FILE_BYTES[one.name]
        ):
            raise InvalidError(f"{one.name} is unreasonably large: {_format_size(one.size)}.")


def refuse_if_disk_full(stage: Path, files: list[HubFile]) -> None:
    """Refuse files that would fill the disk, less what has been downloaded.

    Raises:
        DiskFullError: there is not enough free space.

    """
    size = sum(one.size for one in files)
    have = sum(one.stat().st_size for one in stage.iterdir())
    free = shutil.disk_usage(stage).free
    if size - have + RESERVED_DISK_BYTES > free:
        raise DiskFullError(
            f"This model needs {_format_size(size - have)}, but only {_format_size(free)} "
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
        self.total = sum(one.size for one in files)

    def download_all(self, files: list[HubFile]) -> None:
        for one in files:
            if not (self.stage / one.name).exists():
                self._download_file(one)
            self.done += one.size
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
        while (have := _file_size(part)) < file.size or not part.exists():
            try:
                self._stream(file, part, have)
            except (httpx2.TransportError, UnavailableError) as error:
                tries = tries + 1 if _file_size(part) == have else 0
                if tries >= MAX_STALLED_TRIES:
                    raise UnavailableError(
                        f"{self.hub.host} keeps interrupting the download of {file.name}.",
                        hint="Try again later: the download will resume.",
                    ) from error
                self.pause(2.0**tries - 1)

    def _stream(self, file: HubFile, part: Path, have: int) -> None:
        with self.hub.open(self.listing.id, self.commit, file, have) as answer:
            # A server without support for ranges sends the whole file again.
            goes_on = answer.status_code == httpx2.codes.PARTIAL_CONTENT
            with part.open("ab" if goes_on else "wb") as out:
                have = have if goes_on else 0
                for chunk in answer.iter_bytes():
                    out.write(chunk)
                    have += len(chunk)
                    self._report(have)
                    if have > file.size:
                        break
        if have < file.size:
            raise httpx2.ReadError("The connection closed early.")

    def _report(self, have: int) -> None:
        if self.total:
            told = f"downloaded {_format_size(self.done + have)} of {_format_size(self.total)}"
            self.report(told, min(1.0, (self.done + have) / self.total))


def _matches_hub(path: Path, file: HubFile) -> bool:
    """Whether a file matches the hub's checksum: SHA-256 for large files, else git's."""
    if not (file.sha256 or file.git) or _file_size(path) != file.size:
        return False
    whole = hashlib.sha256() if file.sha256 else hashlib.sha1(usedforsecurity=False)
    if not file.sha256:
        whole.update(f"blob {file.size}\0".encode())
    for chunk in _chunks(path):
        whole.update(chunk)
    return whole.hexdigest() == (file.sha256 or file.git)


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as opened:
        while chunk := opened.read(2**20):
            yield chunk


def _file_size(path: Path) -> int:
    with suppress(FileNotFoundError):
        return path.stat().st_size
    return 0


def _format_size(size: int) -> str:
    return f"{size / _GIGA:,.1f} GB" if size >= _GIGA else f"{size / 1e6:,.1f} MB"
