"""A file from an address of the web: guarded, bounded, and gone on with after a cut.

What has come stays beside what tells whether more of the same would follow: the next try, and the
next attempt of the chore, ask for the rest only if the server says that it is of the same file.
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
"""How often in a row nothing more may come."""

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
    """Fetch a file. Return where it is, its name, and where redirects led to.

    Raises:
        InvalidError: this address may not be asked, or has no such file.
        TooLargeError: it is more than may be kept.
        UnavailableError: it cannot be reached, or no more of it comes.

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
    """Fetch what is missing of the file. Return its name, and where it was."""
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
            raise UnavailableError(f"It breaks off after {came} of {total} bytes.")
        return _filename(wish.url, answer), _without_credentials(answer.url)


def _refuse_error_status(answer: HttpResponse, part: Path) -> None:
    """Say what is wrong with an answer that brings no file."""
    if answer.status in (200, 206):
        if answer.headers.get_content_type() == "text/html":
            raise InvalidError(
                "At this address is a web page, not a file.",
                hint="Copy the address of the download itself.",
                param="url",
            )
        return
    if answer.status == 416:  # noqa: PLR2004 -- the rest of what we have is not there
        part.unlink(missing_ok=True)
    if answer.status in (401, 403, 404, 410):
        words = "is not there" if answer.status in (404, 410) else "is not given to everybody"
        raise InvalidError(
            f"What is asked for {words} (status {answer.status}).",
            hint="Open the address in a browser to see whether it needs a login.",
            param="url",
        )
    raise UnavailableError(
        f"The server answers with status {answer.status}.", hint="Try again later."
    )


def _content_range(answer: HttpResponse, have: int) -> tuple[int, int | None]:
    """Return where in the file the answer begins, and how long the file is if that is known."""
    if answer.status == 200:  # noqa: PLR2004 -- all of it, whatever was asked for
        length = answer.headers.get("Content-Length", "")
        return 0, int(length) if length.isdecimal() else None
    unit, _, where = answer.headers.get("Content-Range", "").partition(" ")
    first, _, total = where.partition("/")
    if unit != "bytes" or first.partition("-")[0] != str(have):
        raise UnavailableError("The server sends another part than was asked for.")
    return have, int(total) if total.isdecimal() else None


def _validator(answer: HttpResponse) -> str:
    """Return what tells this file from another at the address, or nothing. Weak tags do not."""
    tag: str = answer.headers.get("ETag", "")
    if tag.startswith('"'):
        return tag
    modified: str = answer.headers.get("Last-Modified", "")
    return modified


def _filename(asked: str, answer: HttpResponse) -> str:
    """Return what the file is called: as the server says, else as one of the addresses ends."""
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
