"""Static files in memory: no page fails while the folder is replaced or file handles run out.

Each file is read once, and again when it changes, as in a checkout. While it is missing or cannot
be opened, the previous content is served.
"""

import gzip
import hashlib
import mimetypes
import re
import stat
from dataclasses import dataclass
from functools import cache
from http import HTTPStatus
from pathlib import Path, PurePosixPath

from fastapi import HTTPException
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from studio import resources

_MIN_GZIP_BYTES = 1000
"""Smaller files are not worth compressing."""

BUNDLE_NAME = "studio.css"
"""All style sheets in one file: a third smaller in total, and one request."""

STYLESHEETS = (
    "vendor/uPlot.min.css",
    "css/tokens.css",
    "css/base.css",
    "css/layout.css",
    "css/navigation.css",
    "css/components.css",
    "css/forms.css",
    "css/data.css",
    "css/charts.css",
    "css/numbers.css",
    "css/run.css",
    "css/hardware.css",
    "css/compare.css",
    "css/answers.css",
    "css/chat.css",
    "css/token_preview.css",
    "css/table.css",
    "css/home.css",
    "css/print.css",
)
"""In cascade order: within a layer, later sheets override earlier ones."""

REPORT_STYLESHEETS = ("css/tokens.css", "css/report.css")
"""Of reports, which contain their style."""

_COMMENT = re.compile(rb"^[ \t]*(?://[^\n]*|/\*\*.*?\*/[ \t]*)$", re.MULTILINE | re.DOTALL)
_IMMUTABLE = "public, max-age=31536000, immutable"


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticFile:
    content: bytes
    gzipped: bytes
    """Empty if the file is too small to compress."""
    etag: str
    media_type: str
    version: tuple[int, int]
    """Modification time in nanoseconds, and size in bytes."""


class StaticFolder:
    """The files of one folder by their relative paths."""

    def __init__(self, root: Path) -> None:
        self._root = root.resolve()
        self._files: dict[str, StaticFile] = {}

    def load(self) -> None:
        """Read all files."""
        for path in self._root.rglob("*"):
            if path.is_file():
                self.find(path.relative_to(self._root).as_posix())

    def find(self, name: str) -> StaticFile | None:
        """Return a file as it was last read; None if it never existed."""
        cached = self._files.get(name)
        try:
            path = self._path(name)
            status = path.stat()
            version = status.st_mtime_ns, status.st_size
            if cached is not None and cached.version == version:
                return cached
            if not stat.S_ISREG(status.st_mode):
                return cached
            content = path.read_bytes()
            if name.endswith(".js") and not name.startswith("vendor/"):
                content = strip_comments(content)
            self._files[name] = cached = make_static_file(path.name, content, version)
        except (OSError, ValueError):
            pass
        return cached

    def content(self, name: str) -> bytes:
        """Return the content of a file.

        Raises:
            FileNotFoundError: The file does not exist.

        """
        file = self.find(name)
        if file is None:
            raise FileNotFoundError(name)
        return file.content

    def _path(self, name: str) -> Path:
        """Return the path of a file.

        Raises:
            ValueError: The path is outside of the folder.

        """
        path = self._root.joinpath(*PurePosixPath(name).parts)
        if not path.resolve().is_relative_to(self._root):
            raise ValueError(name)
        return path


def strip_comments(script: bytes) -> bytes:
    """Return a script without its whole-line comments: a tenth of what a browser would fetch.

    Line breaks stay, so that errors name the lines of the source.
    """
    return _COMMENT.sub(lambda found: b"\n" * found[0].count(b"\n"), script)


def make_static_file(name: str, content: bytes, version: tuple[int, int] = (0, 0)) -> StaticFile:
    packed = gzip.compress(content, 9, mtime=0) if len(content) >= _MIN_GZIP_BYTES else b""
    return StaticFile(
        content=content,
        gzipped=packed if len(packed) < len(content) else b"",
        # Weak, because it covers the plain and the compressed form.
        etag=f'W/"{hashlib.sha256(content).hexdigest()[:32]}"',
        media_type=mimetypes.guess_type(name)[0] or "application/octet-stream",
        version=version,
    )


@cache
def shared_folder() -> StaticFolder:
    """Return the studio's static files."""
    folder = StaticFolder(resources.static_dir())
    folder.load()
    return folder


def bundle_content() -> bytes:
    return bundle_file().content


@cache
def bundle_file() -> StaticFile:
    contents = map(shared_folder().content, STYLESHEETS)
    return make_static_file(BUNDLE_NAME, b"\n".join(contents))


class CachedStaticFiles:
    """Serves static files: URLs with a content hash are cached forever, others revalidated."""

    def __init__(self, folder: StaticFolder | None = None) -> None:
        self._static_folder = folder or shared_folder()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] not in {"GET", "HEAD"}:
            raise HTTPException(HTTPStatus.METHOD_NOT_ALLOWED, headers={"Allow": "GET, HEAD"})
        name = scope["path"].removeprefix(scope.get("root_path", "")).lstrip("/")
        file = bundle_file() if name == BUNDLE_NAME else self._static_folder.find(name)
        if file is None:
            raise HTTPException(HTTPStatus.NOT_FOUND)
        await _response(file, scope)(scope, receive, send)


def _response(file: StaticFile, scope: Scope) -> Response:
    request_headers = Headers(scope=scope)
    hashed = scope["query_string"].startswith(b"v=")
    headers = {
        "Cache-Control": _IMMUTABLE if hashed else "no-cache",
        "ETag": file.etag,
        "Vary": "Accept-Encoding",
    }
    known_etags = {tag.strip() for tag in request_headers.get("if-none-match", "").split(",")}
    if {file.etag, "*"} & known_etags:
        return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
    content = file.content
    if file.gzipped and "gzip" in request_headers.get("accept-encoding", ""):
        content, headers["Content-Encoding"] = file.gzipped, "gzip"
    return Response(content, headers=headers, media_type=file.media_type)
