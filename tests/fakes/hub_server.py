"""A hub on this machine that speaks the Hugging Face hub's protocol, for models and data sets.

It says what `huggingface_hub` 2.4 asks for: what a repository is and holds, at which commit, and
its files, the large ones by a redirect to where they are stored. What it hands out can be cut off.
Files can be uploaded by who shows its token: see `tests.fakes.hub_uploads`.
"""

import hashlib
import json
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from tests.fakes.hub_uploads import Uploads

KINDS = {"models": "model", "datasets": "dataset"}
_TAGS = ("text-generation",)
"""Tags of models that are not given any."""
LARGE = 1000
"""Files of more bytes are stored aside, as Git LFS does."""

Files = dict[str, bytes]


@dataclass(slots=True)
class Repo:
    """A repository: its commits, oldest first, and what names them."""

    id: str
    kind: str = "model"
    about: dict[str, Any] = field(default_factory=dict)
    """What is told of it besides: downloads, likes, tags, safetensors, cardData …"""
    gated: str = ""
    """`manual` or `auto` where its owner asks for consent first."""
    private: bool = False
    commits: dict[str, Files] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)
    """Of the commits that were uploaded, oldest first."""
    names: dict[str, str] = field(default_factory=dict)

    def push(self, files: Files) -> str:
        """Add a commit with these files and return it; `main` names it from now on."""
        content = b"".join(path.encode() + files[path] for path in sorted(files))
        commit = hashlib.sha1(str(len(self.commits)).encode() + content).hexdigest()  # noqa: S324 -- as git names commits
        self.commits[commit] = dict(files)
        self.names["main"] = commit
        return commit

    def commit(self, revision: str) -> str:
        """Return the commit that a revision names, or nothing."""
        return revision if revision in self.commits else self.names.get(revision, "")


@dataclass(slots=True)
class HubRequest:
    """One request that came."""

    method: str
    path: str
    range: str
    token: str


@dataclass(slots=True)
class HubServer:
    url: str
    token: str = "hf_letmein"  # noqa: S105 -- opens nothing but this
    """Who shows it is let into everything."""
    repos: dict[tuple[str, str], Repo] = field(default_factory=dict)
    asked: list[HubRequest] = field(default_factory=list)
    cuts: dict[str, int] = field(default_factory=dict)
    """After how many bytes of a file the next answer breaks off, by the file's name."""
    wrong: set[str] = field(default_factory=set)
    """Files of which other bytes are handed out than it says."""
    ignores_ranges: bool = False
    uploads: Uploads = field(default_factory=Uploads)
    held: threading.Event = field(default_factory=threading.Event)
    """Files are handed out only while it is set, but for their first bytes."""
    held_after: int = 1
    """How many these are; a file of no more is handed out."""

    def model(self, name: str, files: Files, **about: Any) -> Repo:  # noqa: ANN401 -- any fact
        return self._add(Repo(name, "model", about), files)

    def dataset(self, name: str, files: Files, **about: Any) -> Repo:  # noqa: ANN401 -- any fact
        return self._add(Repo(name, "dataset", about), files)

    def fetched(self, name: str) -> list[HubRequest]:
        """Return the requests for the content of a file, in order."""
        gets = (one for one in self.asked if one.method == "GET" and "/resolve/" in one.path)
        return [one for one in gets if unquote(one.path).endswith(f"/{name}")]

    def _add(self, repo: Repo, files: Files) -> Repo:
        repo.push(files)
        self.repos[repo.kind, repo.id] = repo
        return repo


@pytest.fixture
def hub() -> Iterator[HubServer]:
    with run_hub_server() as made:
        yield made


@contextmanager
def run_hub_server() -> Iterator[HubServer]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (_Handler,), {}))
    server.daemon_threads = True
    made = HubServer(f"http://127.0.0.1:{server.server_port}")
    made.held.set()
    server.RequestHandlerClass.hub = made  # type: ignore[attr-defined] # of the class just made
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield made
    finally:
        made.held.set()
        made.uploads.held.set()
        server.shutdown()
        thread.join()
        server.server_close()


_LIST = re.compile(r"/api/(models|datasets)")
_INFO = re.compile(r"/api/(models|datasets)/([^/]+/[^/]+)(?:/revision/([^/]+))?")
_TREE = re.compile(r"/api/(models|datasets)/([^/]+/[^/]+)/tree/([^/]+)(?:/(.*))?")
_PATHS = re.compile(r"/api/(models|datasets)/([^/]+/[^/]+)/paths-info/([^/]+)")
_FILE = re.compile(r"/(datasets/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)")
_STORED = re.compile(r"/stored/([0-9a-f]{64})/(.+)")
_CREATE = re.compile(r"/api/repos/create")
_CARD = re.compile(r"/api/validate-yaml")
_MODES = re.compile(r"/api/models/([^/]+/[^/]+)/preupload/([^/]+)")
_BATCH = re.compile(r"/([^/]+/[^/]+)\.git/info/lfs/objects/batch")
_PUT = re.compile(r"/lfs/([0-9a-f]{64})(?:/(\d+|complete))?")
_COMMIT = re.compile(r"/api/models/([^/]+/[^/]+)/commit/([^/]+)")


class _Refused(Exception):  # noqa: N818 -- an answer, not a fault
    def __init__(self, status: int, code: str = "", message: str = "") -> None:
        super().__init__(message or code)
        self.status, self.code = status, code


class _Handler(BaseHTTPRequestHandler):
    hub: ClassVar[HubServer]
    body: bytes = b""
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def do_PUT(self) -> None:
        self._answer()

    def log_message(self, *_: object) -> None: ...

    def _answer(self) -> None:
        where = urlsplit(self.path)
        token = self.headers.get("authorization", "").removeprefix("Bearer ")
        asked = HubRequest(self.command, where.path, self.headers.get("range", ""), token)
        self.hub.asked.append(asked)
        if not self._read_body():
            return
        is_form = "urlencoded" in self.headers.get("content-type", "")
        sent = parse_qs(self.body.decode()) if is_form else {}
        try:
            self._route(where.path, parse_qs(where.query) | sent)
        except _Refused as refused:
            told = json.dumps({"error": str(refused)}).encode()
            about = {"X-Error-Code": refused.code} if refused.code else {}
            self._say(refused.status, told, about | {"X-Error-Message": str(refused)})

    def _read_body(self) -> bool:
        """Read what was sent; False if the connection is to break off in the middle of it."""
        size, uploads = int(self.headers.get("content-length", 0)), self.hub.uploads
        is_file = self.command == "PUT"
        is_held = not uploads.held.is_set() and len(uploads.sent) >= uploads.held_after
        if is_file and (is_held or uploads.cut_after is not None):
            uploads.held.wait()
            self.rfile.read(min(size, uploads.cut_after or 0))
            uploads.cut_after, self.close_connection = None, True
            self.connection.shutdown(socket.SHUT_RDWR)
            return False
        self.body = self.rfile.read(size)
        return True

    def _route(self, path: str, query: dict[str, list[str]]) -> None:
        for pattern, handle in (
            (_LIST, self._list),
            (_INFO, self._info),
            (_TREE, self._tree),
            (_PATHS, self._paths),
            (_STORED, self._stored),
            (_FILE, self._file),
            (_CREATE, self._create),
            (_CARD, self._check_card),
            (_MODES, self._modes),
            (_BATCH, self._batch),
            (_PUT, self._put),
            (_COMMIT, self._commit),
        ):
            if match := pattern.fullmatch(path):
                parts = [unquote(part) if part else "" for part in match.groups()]
                handle(parts, query)
                return
        raise _Refused(404, message="Page not found.")

    def _list(self, parts: list[str], query: dict[str, list[str]]) -> None:
        words, limit = query.get("search", [""])[0].lower(), int(query.get("limit", ["100"])[0])
        found = [
            _told(repo, repo.names["main"])
            for repo in self.hub.repos.values()
            if repo.kind == KINDS[parts[0]] and words in repo.id.lower() and self._may_see(repo)
            if set(query.get("filter", ())) <= set(repo.about.get("tags", _TAGS))
        ]
        self._json(sorted(found, key=lambda one: -one["downloads"])[:limit])

    def _info(self, parts: list[str], query: dict[str, list[str]]) -> None:
        repo = self._repo(KINDS[parts[0]], parts[1])
        commit = _commit(repo, parts[2] or "main")
        self._json(_told(repo, commit, with_files="blobs" in query))

    def _tree(self, parts: list[str], query: dict[str, list[str]]) -> None:
        repo = self._repo(KINDS[parts[0]], parts[1])
        files = repo.commits[_commit(repo, parts[2])]
        under = f"{parts[3].strip('/')}/" if parts[3] else ""
        if under and not any(path.startswith(under) for path in files):
            raise _Refused(404, "EntryNotFound")
        inside = [path for path in files if path.startswith(under)]
        folders = {path.rpartition("/")[0] for path in inside} - {"", under.rstrip("/")}
        entries = [{"type": "directory", "oid": "0" * 40, "path": one} for one in sorted(folders)]
        entries += [_entry(path, files[path]) for path in inside]
        is_deep = query.get("recursive", ["False"])[0] in {"True", "true", "1"}
        self._json([one for one in entries if is_deep or "/" not in one["path"][len(under) :]])

    def _paths(self, parts: list[str], query: dict[str, list[str]]) -> None:
        repo = self._repo(KINDS[parts[0]], parts[1])
        files = repo.commits[_commit(repo, parts[2])]
        found = [_entry(path, files[path]) for path in query.get("paths", []) if path in files]
        found += [
            {"type": "directory", "oid": "0" * 40, "path": path}
            for path in query.get("paths", [])
            if any(one.startswith(f"{path}/") for one in files)
        ]
        self._json(found)

    def _file(self, parts: list[str], _query: dict[str, list[str]]) -> None:
        repo = self._repo("dataset" if parts[0] else "model", parts[1])
        if repo.gated and not self._is_let_in():
            raise _Refused(403 if self._shows_token() else 401, "GatedRepo", "It is gated.")
        commit, path = _commit(repo, parts[2]), parts[3]
        content = repo.commits[commit].get(path)
        if content is None:
            raise _Refused(404, "EntryNotFound", "There is no such file.")
        about = {"X-Repo-Commit": commit, "ETag": f'"{_git(content)}"'}
        if len(content) <= LARGE:
            self._content(path, content, about)
            return
        sha256 = hashlib.sha256(content).hexdigest()
        about |= {"X-Linked-ETag": f'"{sha256}"', "X-Linked-Size": str(len(content))}
        # Its client goes after the headers of the last answer from the hub's own host.
        elsewhere = self.hub.url.replace("127.0.0.1", "localhost")
        self._say(302, b"", about | {"Location": f"{elsewhere}/stored/{sha256}/{path}"})

    def _stored(self, parts: list[str], _query: dict[str, list[str]]) -> None:
        every = (files for repo in self.hub.repos.values() for files in repo.commits.values())
        for files in every:
            for content in files.values():
                if hashlib.sha256(content).hexdigest() == parts[0]:
                    self._content(parts[1], content, {"ETag": f'"{parts[0]}"'})
                    return
        raise _Refused(404)

    def _create(self, _parts: list[str], _query: dict[str, list[str]]) -> None:
        about = json.loads(self.body)
        name = f"{about['organization']}/{about['name']}"
        self._require_writer(about["organization"])
        if ("model", name) in self.hub.repos:
            told = {"error": "You already created this model repo.", "url": self._page(name)}
            self._say(409, json.dumps(told).encode(), {"Content-Type": "application/json"})
            return
        is_private = about.get("visibility") == "private"
        self.hub._add(Repo(name, private=is_private), {".gitattributes": b"* lfs\n"})
        self._json({"url": self._page(name), "name": name, "id": name})

    def _page(self, name: str) -> str:
        return f"{self.hub.url}/{name}"

    def _check_card(self, _parts: list[str], _query: dict[str, list[str]]) -> None:
        self._json({"errors": [], "warnings": []})

    def _modes(self, parts: list[str], _query: dict[str, list[str]]) -> None:
        repo = self._writable(parts[0])
        files = repo.commits[repo.commit("main")]
        told = []
        for one in json.loads(self.body)["files"]:
            content, is_large = files.get(one["path"]), one["size"] > LARGE
            oid = None if content is None else _oid(content, is_large=is_large)
            told.append(
                {
                    "path": one["path"],
                    "uploadMode": "lfs" if is_large else "regular",
                    "shouldIgnore": False,
                    "oid": oid,
                }
            )
        self._json({"files": told})

    def _batch(self, parts: list[str], _query: dict[str, list[str]]) -> None:
        self._writable(parts[0])
        self._json(self.hub.uploads.batch(self.hub.url, json.loads(self.body)))

    def _put(self, parts: list[str], _query: dict[str, list[str]]) -> None:
        uploads = self.hub.uploads
        if parts[1] == "complete":
            uploads.join_parts(parts[0], json.loads(self.body)["parts"])
            self._json({"success": True})
        elif parts[1]:
            self._say(200, b"", {"ETag": uploads.keep_part(parts[0], int(parts[1]), self.body)})
        else:
            uploads.keep(parts[0], self.body)
            self._say(200, b"", {})

    def _commit(self, parts: list[str], _query: dict[str, list[str]]) -> None:
        repo = self._writable(parts[0])
        if self.hub.uploads.refused:
            raise _Refused(422, message=self.hub.uploads.refused)
        message, files = self.hub.uploads.read_commit(self.body)
        repo.messages.append(message)
        commit = repo.push({**repo.commits[repo.commit("main")], **files})
        where = f"{self.hub.url}/{repo.id}/commit/{commit}"
        self._json({"success": True, "commitOid": commit, "commitUrl": where})

    def _writable(self, name: str) -> Repo:
        self._require_writer(name.partition("/")[0])
        return self._repo("model", name)

    def _require_writer(self, owner: str) -> None:
        if not self._is_let_in():
            raise _Refused(401, message="Invalid username or password.")
        if owner != self.hub.uploads.owner:
            raise _Refused(403, message=f"You have no rights to write to {owner}.")

    def _content(self, path: str, content: bytes, about: dict[str, str]) -> None:
        if path in self.hub.wrong:
            content = bytes(len(content))
        start = 0
        if (asked := self.headers.get("range")) and not self.hub.ignores_ranges:
            start = int(asked.removeprefix("bytes=").partition("-")[0])
            if start >= len(content):
                raise _Refused(416)
            about |= {"Content-Range": f"bytes {start}-{len(content) - 1}/{len(content)}"}
        cut = self.hub.cuts.pop(path, None) if self.command == "GET" else None
        about |= {"Accept-Ranges": "bytes"}
        self._say(206 if asked and start else 200, content[start:], about, cut=cut)

    def _json(self, told: object) -> None:
        self._say(200, json.dumps(told).encode(), {"Content-Type": "application/json"})

    def _say(
        self, status: int, content: bytes, about: dict[str, str], cut: int | None = None
    ) -> None:
        self.send_response(status)
        for name, value in (about | {"Content-Length": str(len(content))}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        # The rest of a file, asked for after a timeout, is held back whole.
        first = self.hub.held_after if status == HTTPStatus.OK else 0
        self.wfile.write(content[: min(first, cut or first)])
        self.wfile.flush()
        if "Accept-Ranges" in about and len(content) > first:
            self.hub.held.wait()
        self.wfile.write(content[first:cut])
        self.close_connection = self.close_connection or cut is not None

    def _repo(self, kind: str, name: str) -> Repo:
        repo = self.hub.repos.get((kind, name))
        if repo is None or not self._may_see(repo):
            # Of what does not exist and of what is private the hub says the same.
            raise _Refused(404 if self._shows_token() else 401, "RepoNotFound", "Not found.")
        return repo

    def _may_see(self, repo: Repo) -> bool:
        return not repo.private or self._is_let_in()

    def _shows_token(self) -> bool:
        return "authorization" in self.headers

    def _is_let_in(self) -> bool:
        return self.headers.get("authorization") == f"Bearer {self.hub.token}"


def _commit(repo: Repo, revision: str) -> str:
    if commit := repo.commit(revision):
        return commit
    raise _Refused(404, "RevisionNotFound", "There is no such revision.")


def _told(repo: Repo, commit: str, *, with_files: bool = False) -> dict[str, Any]:
    files = repo.commits[commit]
    siblings = [
        {"rfilename": path} | (_sibling(files[path]) if with_files else {}) for path in files
    ]
    return {
        "_id": "0" * 24,
        "id": repo.id,
        "modelId": repo.id,
        "author": repo.id.partition("/")[0],
        "sha": commit,
        "lastModified": "2026-01-01T00:00:00.000Z",
        "createdAt": "2026-01-01T00:00:00.000Z",
        "private": repo.private,
        "gated": repo.gated or False,
        "disabled": False,
        "downloads": 0,
        "likes": 0,
        "tags": [],
        "siblings": siblings,
    } | repo.about


def _entry(path: str, content: bytes) -> dict[str, Any]:
    about = _sibling(content)
    entry = {"type": "file", "oid": about["blobId"], "size": about["size"], "path": path}
    if lfs := about.get("lfs"):
        entry["lfs"] = {"oid": lfs["sha256"], "size": lfs["size"], "pointerSize": 134}
    return entry


def _sibling(content: bytes) -> dict[str, Any]:
    about: dict[str, Any] = {"size": len(content), "blobId": _git(content)}
    if len(content) > LARGE:
        sha256 = hashlib.sha256(content).hexdigest()
        about["lfs"] = {"sha256": sha256, "size": len(content), "pointerSize": 134}
    return about


def _oid(content: bytes, *, is_large: bool) -> str:
    """Return what the hub compares a file by: large ones by their SHA-256, others as git does."""
    return hashlib.sha256(content).hexdigest() if is_large else _git(content)


def _git(content: bytes) -> str:
    """Return what git calls a file of this content."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()  # noqa: S324 -- git's own
