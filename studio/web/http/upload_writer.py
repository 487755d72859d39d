"""Writes an uploaded file and hashes it on the way, so that it need not be read again."""

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Self


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedFile:
    """A fully received file."""

    path: Path
    filename: str
    sha256: str


@dataclass(slots=True)
class UploadWriter:
    path: Path
    filename: str
    _file: BinaryIO
    _digest: "hashlib._Hash" = field(default_factory=hashlib.sha256)

    @classmethod
    def open(cls, path: Path, filename: str) -> Self:
        return cls(path, filename, path.open("wb"))

    def write(self, data: memoryview) -> None:
        self._file.write(data)
        self._digest.update(data)

    def close(self) -> ReceivedFile:
        self._file.close()
        return ReceivedFile(path=self.path, filename=self.filename, sha256=self._digest.hexdigest())
