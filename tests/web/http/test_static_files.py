"""Static files stay there while their folder is replaced, and without any file descriptor."""

import gzip
import os
import resource
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from starlette.middleware.gzip import GZipMiddleware

from hatch_build import replace_folder
from studio.web.rendering.static_files import CachedStaticFiles, StaticFolder

pytestmark = pytest.mark.smoke

SCRIPT = b"let chart = 1;\n" * 500


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "static"
    (root / "vendor").mkdir(parents=True)
    (root / "vendor" / "chart.js").write_bytes(SCRIPT)
    (tmp_path / "secret.js").write_bytes(b"secret")
    return root


@pytest.fixture
def client(root: Path) -> Iterator[TestClient]:
    folder = StaticFolder(root)
    folder.load()
    app = FastAPI()
    app.add_middleware(GZipMiddleware, minimum_size=100)
    app.mount("/static", CachedStaticFiles(folder))
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client


def hammer(client: TestClient, until: Event) -> Counter[int]:
    seen: Counter[int] = Counter()
    while not until.is_set():
        seen[client.get("/static/vendor/chart.js").status_code] += 1
    return seen


def test_folder_can_be_replaced_while_served(client: TestClient, root: Path) -> None:
    until, vendor = Event(), root / "vendor"
    with ThreadPoolExecutor(2) as pool:
        hammers = [pool.submit(hammer, client, until) for _ in range(2)]
        for _ in range(50):
            shutil.copytree(vendor, root / "vendor.new")
            replace_folder(root / "vendor.new", vendor)
        until.set()

    assert set(sum((one.result() for one in hammers), Counter())) == {200}


def test_deleted_file_is_served_from_cache(client: TestClient, root: Path) -> None:
    shutil.rmtree(root / "vendor")

    assert client.get("/static/vendor/chart.js").content == SCRIPT


def test_cached_file_is_served_without_free_file_descriptors(
    client: TestClient, root: Path
) -> None:
    (root / "vendor" / "chart.js").write_bytes(b"changed, and cannot be opened")
    client.get("/static/nothing.js")
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.dup(0)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, before[1]))
    try:
        answer = client.get("/static/vendor/chart.js")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)

    assert (answer.status_code, answer.content) == (200, SCRIPT)


def test_changed_file_is_reloaded(client: TestClient, root: Path) -> None:
    before = client.get("/static/vendor/chart.js")
    (root / "vendor" / "chart.js").write_bytes(b"changed")
    after = client.get("/static/vendor/chart.js")

    assert after.content == b"changed"
    assert after.headers["etag"] != before.headers["etag"]


def test_unchanged_file_returns_304(client: TestClient) -> None:
    etag = client.get("/static/vendor/chart.js").headers["etag"]
    answer = client.get("/static/vendor/chart.js", headers={"If-None-Match": etag})

    assert (answer.status_code, answer.content) == (304, b"")


@pytest.mark.parametrize(("encoding", "packed"), [("gzip", "gzip"), ("identity", None)])
def test_file_is_compressed_when_browser_accepts_gzip(
    client: TestClient, encoding: str, packed: str | None
) -> None:
    with client.stream(
        "GET", "/static/vendor/chart.js", headers={"Accept-Encoding": encoding}
    ) as answer:
        body = b"".join(answer.iter_raw())

    assert answer.headers.get("content-encoding") == packed
    assert (gzip.decompress(body) if packed else body) == SCRIPT
    assert answer.headers["content-length"] == str(len(body))


def test_own_scripts_are_served_without_whole_line_comments(client: TestClient, root: Path) -> None:
    script = b"// Why.\nlet a = 1; // stays\n  /**\n   * What.\n   */\nlet b = `/** c`;\n"
    (root / "own.js").write_bytes(script)
    (root / "vendor" / "licensed.js").write_bytes(script)

    stripped = b"\nlet a = 1; // stays\n\n\n\nlet b = `/** c`;\n"
    assert client.get("/static/own.js").content == stripped
    assert client.get("/static/vendor/licensed.js").content == script


NOWHERE: list[str] = ["", "vendor", "nothing.js", "../secret.js", "%2e%2e/secret.js", "vendor/%00"]


@pytest.mark.parametrize("name", NOWHERE)
def test_unknown_static_paths_return_404(client: TestClient, name: str) -> None:
    assert client.get(f"/static/{name}").status_code == 404


def test_symlink_out_of_folder_is_not_followed(client: TestClient, root: Path) -> None:
    (root / "link.js").symlink_to(root.parent / "secret.js")

    assert client.get("/static/link.js").status_code == 404


def test_only_read_methods_are_allowed(client: TestClient) -> None:
    send: list[Callable[..., object]] = [client.post, client.put, client.delete]

    assert {one("/static/vendor/chart.js").status_code for one in send} == {405}  # type: ignore[attr-defined] # all answer alike
