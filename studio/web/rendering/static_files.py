"""Static files in memory: no page fails for a folder that is being replaced, or open files.

A file is read once. In a checkout, one that has changed since is read again; while it is missing or
cannot be opened, what was read before is sent.
"""

import gzip
import hashlib
import mimetypes
import stat
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath

from studio import resources

_MIN_GZIP_BYTES = 1000
"""A smaller file is not worth packing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticFile:
    content: bytes
    gzipped: bytes
    """Nothing where the file is small."""
    etag: str
    media_type: str
    version: tuple[int, int]
    """Modification time in nanoseconds, and size in bytes."""


class StaticFolder:
    """The files of one folder by their relative names."""

    def __init__(self, root: Path) -> None:
        self._root = root.resolve()
        self._files: dict[str, StaticFile] = {}

    def load(self) -> None:
        """Read all files."""
        for path in self._root.rglob("*"):
            if path.is_file():
                self.find(path.relative_to(self._root).as_posix())

    def find(self, name: str) -> StaticFile | None:
        """Return a file, as it was when it could last be read; None if there never was one."""
        known = self._files.get(name)
        try:
            path = self._path(name)
            status = path.stat()
            version = status.st_mtime_ns, status.st_size
            if known is not None and known.version == version:
                return known
            if not stat.S_ISREG(status.st_mode):
                return known
            self._files[name] = known = make_static_file(path.name, path.read_bytes(), version)
        except (OSError, ValueError):
            pass
        return known

    def content(self, name: str) -> bytes:
        """Return what is in a file.

        Raises:
            FileNotFoundError: there is none.

        """
        found = self.find(name)
        if found is None:
            raise FileNotFoundError(name)
        return found.content

    def _path(self, name: str) -> Path:
        """Return where a file is.

        Raises:
            ValueError: that is outside of the folder.

        """
        path = self._root.joinpath(*PurePosixPath(name).parts)
        if not path.resolve().is_relative_to(self._root):
            raise ValueError(name)
        return path


def make_static_file(name: str, content: bytes, version: tuple[int, int] = (0, 0)) -> StaticFile:
    packed = gzip.compress(content, 9, mtime=0) if len(content) >= _MIN_GZIP_BYTES else b""
    return StaticFile(
        content=content,
        gzipped=packed if len(packed) < len(content) else b"",
        # Weak, because it stands for both forms of the file.
        etag=f'W/"{hashlib.sha256(content).hexdigest()[:32]}"',
        media_type=mimetypes.guess_type(name)[0] or "application/octet-stream",
        version=version,
    )


@cache
def shared_folder() -> StaticFolder:
    """Return the studio's own files."""
    folder = StaticFolder(resources.static_dir())
    folder.load()
    return folder
