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
from studio.runner.sources.chunked_file import ChunkWriter
from studio.runner.task_dispatch import ReportProgress

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
    wish: DownloadRequest, folder: Path, tell: ReportProgress
) -> tuple[Path, str, dict[str, Any]]:
    """Fetch a file. Return its path, its name, and the URL that redirects led to.

    Raises:
        InvalidError: the URL is not allowed, or has no such file.
        TooLargeError: the file exceeds the size limit.
        UnavailableError: the server cannot be reached, or the download keeps breaking off.

    """
    part, end, tries = folder / "fetched.part", time.monotonic() + wish.limits.seconds, 0
    while True:
        have = _file_size(part)
        try:
            filename, url = _download_rest(wish, part, end, tell)
        except UnavailableError:
            tries = 1 if _file_size(part) != have else tries + 1
            if tries >= MAX_STALLED_TRIES or time.monotonic() >= end:
                raise
            wish.pause(2.0 ** (tries - 1) - 1)
        else:
            return part.replace(folder / "fetched"), filename, {"url": url}


def _download_rest(
    wish: DownloadRequest, part: Path, end: float, tell: ReportProgress
) -> tuple[str, str]:
    """Fetch the missing part of the file. Return the file's name and final URL."""
    mark, have = part.with_suffix(".mark"), _file_size(part)
    known = json.loads(mark.read_text(encoding="utf-8")) if have and mark.exists() else ""
    more = {"Range": f"bytes={have}-", "If-Range": known} if known else {}
    with safe_http.open_url(
        wish.url,
        _HEADERS | more,
        seconds=max(0.0, end - time.monotonic()),
        allow_internal=wish.allow_internal,
    ) as answer:
        _refuse_error_status(answer, part)
        start, total = _content_range(answer, have)
        mark.write_text(json.dumps(_validator(answer)), encoding="utf-8")
        came = ChunkWriter(wish.limits, tell, total).append(part, answer.iter_bytes(), start)
        if total is not None and came != total:
            raise UnavailableError(f"The download stopped after {came} of {total} bytes.")
        return _filename(wish.url, answer), _without_credentials(answer.url)


def _refuse_error_status(answer: HttpResponse, part: Path) -> None:
    """Raise an error that explains a response without a file."""
    if answer.status in (200, 206):
        if answer.headers.get_content_type() == "text/html":
            raise InvalidError(
                "This URL returns a web page, not a file.",
                hint="Copy the URL of the download itself.",
                param="url",
            )
        return
    if answer.status == 416:  # noqa: PLR2004 -- the range we asked for does not exist
        part.unlink(missing_ok=True)
    if answer.status in (401, 403, 404, 410):
        words = "does not exist" if answer.status in (404, 410) else "is not public"
        raise InvalidError(
            f"The requested file {words} (status {answer.status}).",
            hint="Open the URL in a browser to see whether it needs a login.",
            param="url",
        )
    raise UnavailableError(
        f"The server responded with status {answer.status}.", hint="Try again later."
    )


def _content_range(answer: HttpResponse, have: int) -> tuple[int, int | None]:
    """Return the file offset at which the response begins, and the file's length if known."""
    if answer.status == 200:  # noqa: PLR2004 -- the whole file, whatever was requested
        length = answer.headers.get("Content-Length", "")
        return 0, int(length) if length.isdecimal() else None
    unit, _, where = answer.headers.get("Content-Range", "").partition(" ")
    first, _, total = where.partition("/")
    if unit != "bytes" or first.partition("-")[0] != str(have):
        raise UnavailableError("The server sent a different range than requested.")
    return have, int(total) if total.isdecimal() else None


def _validator(answer: HttpResponse) -> str:
    """Return a strong validator of the file at this URL, or "". Weak tags are not enough."""
    tag: str = answer.headers.get("ETag", "")
    if tag.startswith('"'):
        return tag
    modified: str = answer.headers.get("Last-Modified", "")
    return modified


def _filename(asked: str, answer: HttpResponse) -> str:
    """Return the file name: as the server gives it, else from one of the URLs."""
    places = (unquote(PurePosixPath(urlsplit(url).path).name) for url in (asked, answer.url))
    named = [name for name in (answer.headers.get_filename(), *places) if name]
    name = next((name for name in named if PurePosixPath(name).suffix), (*named, "download")[0])
    is_packed = answer.headers.get("Content-Encoding", "") == "gzip"
    return f"{name}.gz" if is_packed and not name.endswith(".gz") else name


def _without_credentials(url: str) -> str:
    where = urlsplit(url)
    return f"{where.scheme}://{where.netloc.rpartition('@')[2]}{where.path}"


def _file_size(path: Path) -> int:
    with suppress(FileNotFoundError):
        return path.stat().st_size
    return 0
