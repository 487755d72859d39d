"""Download a file from a URL: safely, within limits, resuming after an interruption.

The partial file is stored next to its validator (ETag or date). The next try, and the next attempt
of the task, request the rest only if the server confirms that the file has not changed.
"""

import json
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

from studio.data_sources import FetchLimits
from studio.errors import InvalidError, UnavailableError
from studio.network import safe_http
from studio.network.safe_http import HttpResponse
from studio.runner.execution import ReportProgress
from studio.runner.sources.chunked_file import ChunkWriter

MAX_STALLED_TRIES = 5
"""How many tries in a row may bring no data."""

_HEADERS = {"User-Agent": "mantissa-studio", "Accept": "*/*", "Accept-Encoding": "identity"}


@dataclass(frozen=True, slots=True)
class DownloadRequest:
    url: str
    limits: FetchLimits
    allow_internal: bool = False
    pause: Callable[[float], None] = time.sleep


def fetch(
    request: DownloadRequest, folder: Path, report: ReportProgress
) -> tuple[Path, str, dict[str, Any]]:
    """Fetch a file. Return its path, its name, and the URL that redirects led to.

    Raises:
        InvalidError: the URL is not allowed, or has no such file.
        TooLargeError: the file exceeds the size limit.
        UnavailableError: the server cannot be reached, or the download keeps breaking off.

    """
    part, end, tries = folder / "fetched.part", time.monotonic() + request.limits.seconds, 0
    while True:
        received = _file_size(part)
        try:
            filename, url = _download_rest(request, part, end, report)
        except UnavailableError:
            tries = 1 if _file_size(part) != received else tries + 1
            if tries >= MAX_STALLED_TRIES or time.monotonic() >= end:
                raise
            request.pause(2.0 ** (tries - 1) - 1)
        else:
            return part.replace(folder / "fetched"), filename, {"url": url}


def _download_rest(
    request: DownloadRequest, part: Path, end: float, report: ReportProgress
) -> tuple[str, str]:
    """Fetch the missing part of the file. Return the file's name and final URL."""
    validator_file, offset = part.with_suffix(".mark"), _file_size(part)
    stored_validator = (
        json.loads(validator_file.read_text(encoding="utf-8"))
        if offset and validator_file.exists()
        else ""
    )
    range_headers = (
        {"Range": f"bytes={offset}-", "If-Range": stored_validator} if stored_validator else {}
    )
    with safe_http.open_url(
        request.url,
        _HEADERS | range_headers,
        seconds=max(0.0, end - time.monotonic()),
        allow_internal=request.allow_internal,
    ) as response:
        _refuse_error_status(response, part)
        start, total = _content_range(response, offset)
        validator_file.write_text(json.dumps(_validator(response)), encoding="utf-8")
        received = ChunkWriter(request.limits, report, total).append(
            part, response.iter_bytes(), start
        )
        if total is not None and received != total:
            raise UnavailableError(f"The download stopped after {received} of {total} bytes.")
        return _filename(request.url, response), _without_credentials(response.url)


def _refuse_error_status(response: HttpResponse, part: Path) -> None:
    """Raise an error that explains a response without a file."""
    if response.status in (200, 206):
        if response.headers.get_content_type() == "text/html":
            raise InvalidError(
                "This URL returns a web page, not a file.",
                hint="Copy the URL of the download itself.",
                param="url",
            )
        return
    if response.status == 416:  # noqa: PLR2004 -- the range we asked for does not exist
        part.unlink(missing_ok=True)
    if response.status in (401, 403, 404, 410):
        problem = "does not exist" if response.status in (404, 410) else "is not public"
        raise InvalidError(
            f"The requested file {problem} (status {response.status}).",
            hint="Open the URL in a browser to see whether it needs a login.",
            param="url",
        )
    raise UnavailableError(
        f"The server responded with status {response.status}.", hint="Try again later."
    )


def _content_range(response: HttpResponse, offset: int) -> tuple[int, int | None]:
    """Return the file offset at which the response begins, and the file's length if known."""
    if response.status == 200:  # noqa: PLR2004 -- the whole file, whatever was requested
        length = response.headers.get("Content-Length", "")
        return 0, int(length) if length.isdecimal() else None
    unit, _, byte_range = response.headers.get("Content-Range", "").partition(" ")
    first, _, total = byte_range.partition("/")
    if unit != "bytes" or first.partition("-")[0] != str(offset):
        raise UnavailableError("The server sent a different range than requested.")
    return offset, int(total) if total.isdecimal() else None


def _validator(response: HttpResponse) -> str:
    """Return a strong validator of the file at this URL, or "". Weak tags are not enough."""
    tag: str = response.headers.get("ETag", "")
    if tag.startswith('"'):
        return tag
    modified: str = response.headers.get("Last-Modified", "")
    return modified


def _filename(requested_url: str, response: HttpResponse) -> str:
    """Return the file name: as the server gives it, else from one of the URLs."""
    url_names = (
        unquote(PurePosixPath(urlsplit(url).path).name) for url in (requested_url, response.url)
    )
    candidates = [name for name in (response.headers.get_filename(), *url_names) if name]
    name = next(
        (name for name in candidates if PurePosixPath(name).suffix), (*candidates, "download")[0]
    )
    is_packed = response.headers.get("Content-Encoding", "") == "gzip"
    return f"{name}.gz" if is_packed and not name.endswith(".gz") else name


def _without_credentials(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _file_size(path: Path) -> int:
    with suppress(FileNotFoundError):
        return path.stat().st_size
    return 0
