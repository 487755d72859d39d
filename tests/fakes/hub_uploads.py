"""How the hub takes files: the part of its protocol that `huggingface_hub` 2.4 uploads with.

A repository is created, the hub says which files are large, these are stored by their SHA-256, in
parts if they are very large, and a commit names all files.
"""

import base64
import hashlib
import json
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Uploads:
    """What was sent, and how the hub takes it."""

    owner: str = "me"
    """Whose repositories its token may write."""
    stored: dict[str, bytes] = field(default_factory=dict)
    """Large files, by their SHA-256."""
    sent: list[str] = field(default_factory=list)
    """The SHA-256 of each large file whose content was sent, in order."""
    part_bytes: int = 0
    """Larger files are sent in parts of so many bytes; 0 if none is."""
    cut_after: int | None = None
    """After how many bytes of a file the connection breaks off, once."""
    held: threading.Event = field(default_factory=threading.Event)
    """While it is not set, only `held_after` large files are taken. The others' connections wait,
    and break off then."""
    held_after: int = 0
    refused: str = ""
    """Why every commit is refused."""
    _parts: dict[tuple[str, int], bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.held.set()

    def keep(self, sha256: str, content: bytes) -> None:
        """Store a large file; it must be what it says."""
        assert hashlib.sha256(content).hexdigest() == sha256
        self.stored[sha256] = content
        self.sent.append(sha256)

    def keep_part(self, sha256: str, number: int, content: bytes) -> str:
        """Store a part of a file, and return its tag."""
        self._parts[sha256, number] = content
        return hashlib.sha256(content).hexdigest()

    def join_parts(self, sha256: str, parts: Iterable[dict[str, Any]]) -> None:
        """Store a file of which all parts have been sent."""
        contents = [self._parts[sha256, part["partNumber"]] for part in parts]
        assert [hashlib.sha256(one).hexdigest() for one in contents] == [p["etag"] for p in parts]
        self.keep(sha256, b"".join(contents))

    def batch(self, url: str, asked: dict[str, Any]) -> dict[str, Any]:
        """Say where each large file is to be sent, if it is not stored yet."""
        return {
            "transfer": "basic",
            "objects": [self._object(url, one) for one in asked["objects"]],
        }

    def _object(self, url: str, one: dict[str, Any]) -> dict[str, Any]:
        oid, size = one["oid"], one["size"]
        if oid in self.stored:
            return {"oid": oid, "size": size}
        here, header = f"{url}/lfs/{oid}", {}
        if self.part_bytes and size > self.part_bytes:
            count = -(-size // self.part_bytes)
            header = {f"{part:05}": f"{here}/{part}" for part in range(1, count + 1)}
            header["chunk_size"] = str(self.part_bytes)
            here = f"{here}/complete"
        upload = {"href": here, "header": header}
        return {"oid": oid, "size": size, "authenticated": True, "actions": {"upload": upload}}

    def read_commit(self, lines: bytes) -> tuple[str, dict[str, bytes]]:
        """Return a commit's message and its files."""
        entries = [json.loads(line) for line in lines.splitlines()]
        files: dict[str, bytes] = {}
        message = ""
        for entry in entries:
            value = entry["value"]
            match entry["key"]:
                case "header":
                    message = value["summary"]
                case "file":
                    files[value["path"]] = base64.b64decode(value["content"])
                case "lfsFile":
                    files[value["path"]] = self.stored[value["oid"]]
        return message, files
