"""Find the images that rows refer to: in their archive, in the folder of stored rows, or by URL.

A path is looked up among the names of the archive's files, and never opened as a path.
"""

import base64
import binascii
import re
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from posixpath import normpath
from urllib.parse import unquote_to_bytes, urlsplit

from studio.errors import InvalidError, UnavailableError
from studio.intake.files.archives import Archive, is_archive, open_archive
from studio.intake.files.limits import ImageLimits, Limits, Meter
from studio.intake.images.image_checks import check_size
from studio.intake.problems import ProblemCode
from studio.intake.row_formats.image_parts import ImageRef
from studio.intake.row_formats.schema import UnusableRowError
from studio.network import safe_http

IMAGES = "images"
"""The folder of stored images, beside the rows."""
_WEB_URL = re.compile(r"https?://", re.IGNORECASE)
_DATA_URL = re.compile(r"data:[^,]{0,200},", re.IGNORECASE)
_ABSOLUTE = re.compile(r"[/\\]|[A-Za-z][A-Za-z0-9+.-]*:")
"""An absolute path, a drive, or a URL of another scheme such as `file:`."""
_SHOWN_CHARS = 100
_FETCH_SECONDS = 30.0
_MAX_FETCH_FAILURES = 5
"""After so many failures without an answer, a host is not asked again."""
_HEADERS = {"User-Agent": "mantissa-studio", "Accept-Encoding": "identity"}
_OK = 200


class ImageFiles:
    """The files among which a row's images are."""

    def __init__(self, folder: Path, limits: ImageLimits) -> None:
        self._folder = folder
        self._limits = limits

    def find(self, ref: ImageRef, _member: str) -> str:
        """Return the name under which an image can be read.

        Raises:
            UnusableRowError: there is no such image.

        """
        path = self._folder / IMAGES / ref.sha256
        if ref.sha256 and path.is_file() and not path.is_symlink():
            return ref.sha256
        _check_inside(ref.name)
        raise _missing(ref.name)

    def read(self, name: str) -> bytes:
        """Return the content of an image that was found.

        Raises:
            UnusableRowError: it is too large.

        """
        path = self._folder / IMAGES / name
        check_size(path.stat().st_size, self._limits)
        return path.read_bytes()


class ArchivedImages(ImageFiles):
    """The images in an archive."""

    def __init__(self, archive: Archive, path: Path, limits: Limits) -> None:
        super().__init__(path.parent, limits.images)
        self._archive = archive
        self._meter = Meter(limits, path.stat().st_size)
        self._names: dict[str, str] = {}
        self._by_last_part: dict[str, list[str]] = {}
        for name in archive.file_names:
            # A Mac writes ü in two characters, but often one of them in the rows.
            normal = _normalise(name)
            self._names.setdefault(normal, name)
            self._by_last_part.setdefault(PurePosixPath(normal).name, []).append(normal)
        tables = [member.name for member in archive.members]
        self._only_table = tables[0] if len(tables) == 1 else ""

    def find(self, ref: ImageRef, member: str) -> str:
        name = _normalise(ref.name.replace("\\", "/"))
        _check_inside(name)
        table = PurePosixPath(_normalise(member or self._only_table))
        is_outside = True
        for folder in table.parents:
            path = normpath(folder / name)
            is_outside = is_outside and path.startswith("..")
            if path in self._names:
                return self._names[path]
        if is_outside:
            raise _outside(ref.name)
        return self._find_by_end(name)

    def _find_by_end(self, name: str) -> str:
        """Return the only file whose path ends with this one; the folder is often left out."""
        end = f"/{normpath(name)}"
        candidates = self._by_last_part.get(PurePosixPath(name).name, [])
        found = [path for path in candidates if path.endswith(end)]
        if len(found) != 1:
            raise _missing(name)
        return self._names[found[0]]

    def read(self, name: str) -> bytes:
        content = bytearray()
        with self._archive.open(name, self._meter) as file:
            while piece := file.read(2**16):
                content += piece
                check_size(len(content), self._limits)
        return bytes(content)


@contextmanager
def open_image_files(path: Path, limits: Limits) -> Iterator[ImageFiles]:
    """Open what the rows of a file may refer to."""
    if not is_archive(path):
        yield ImageFiles(path.parent, limits.images)
        return
    with open_archive(path) as archive:
        yield ArchivedImages(archive, path, limits)


def is_web_url(name: str) -> bool:
    return _WEB_URL.match(name) is not None


def decode_data_url(url: str) -> bytes | None:
    """Return the content of a data URL, or None if it is none.

    Raises:
        UnusableRowError: its base64 is broken.

    """
    match = _DATA_URL.match(url)
    if match is None:
        return None
    content = url[match.end() :]
    if not match.group().lower().endswith(";base64,"):
        return unquote_to_bytes(content)
    try:
        return base64.b64decode("".join(content.split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise UnusableRowError(ProblemCode.BROKEN_IMAGE, "invalid base64") from error


class WebImages:
    """Downloads images, from addresses that are checked, and gives up on hosts without answer."""

    def __init__(self, limits: ImageLimits) -> None:
        self._limits = limits
        self._failures: dict[str, int] = {}

    def fetch(self, url: str) -> bytes:
        """Download an image.

        Raises:
            UnusableRowError: it cannot be downloaded, or is too large.

        """
        host = _host(url)
        if self._failures.get(host, 0) >= _MAX_FETCH_FAILURES:
            raise _unreachable(f"{host} did not answer several times")
        try:
            safe_http.validate_url(url)
            return self._download(url, host)
        except InvalidError as error:
            raise _unreachable(f"{host}: {error.message.rstrip('.')}") from error
        except UnavailableError as error:
            self._failures[host] = self._failures.get(host, 0) + 1
            raise _unreachable(f"{host}: {error.message.rstrip('.')}") from error

    def _download(self, url: str, host: str) -> bytes:
        content = bytearray()
        allow_internal = self._limits.allow_internal
        with safe_http.open_url(
            url, _HEADERS, seconds=_FETCH_SECONDS, allow_internal=allow_internal
        ) as response:
            if response.status != _OK:
                raise _unreachable(f"{host} answered with status {response.status}")
            for piece in response.iter_bytes():
                content += piece
                check_size(len(content), self._limits)
        return bytes(content)


def _host(url: str) -> str:
    try:
        return (urlsplit(url).hostname or "")[:_SHOWN_CHARS]
    except ValueError:
        return ""


def _normalise(name: str) -> str:
    return unicodedata.normalize("NFC", name)


def _check_inside(name: str) -> None:
    if _ABSOLUTE.match(name) or "\0" in name:
        raise _outside(name)


def _outside(name: str) -> UnusableRowError:
    return UnusableRowError(ProblemCode.OUTSIDE_IMAGE, name[:_SHOWN_CHARS])


def _missing(name: str) -> UnusableRowError:
    return UnusableRowError(ProblemCode.MISSING_IMAGE, name[:_SHOWN_CHARS])


def _unreachable(reason: str) -> UnusableRowError:
    return UnusableRowError(ProblemCode.UNREACHABLE_IMAGE, reason)
