"""Large files in parts, as a program sends them."""

import os

import pytest
from fastapi.testclient import TestClient

from studio.services.datasets import uploads
from studio.settings import Settings

CONTENT = bytes(range(256)) * 10


def begin(client: TestClient, size: int = len(CONTENT)) -> str:
    made = client.post("/api/v1/uploads", json={"filename": "rows.jsonl", "size": size})
    assert (made.status_code, made.headers["location"]) == (
        201,
        f"/api/v1/uploads/{made.json()['id']}",
    )
    path: str = made.headers["location"]
    return path


def send(client: TestClient, path: str, offset: int, content: bytes) -> tuple[int, str | None]:
    answer = client.patch(path, headers={"Upload-Offset": str(offset)}, content=content)
    return answer.status_code, answer.headers.get("upload-offset")


def test_file_can_be_uploaded_in_parts(client: TestClient, settings: Settings) -> None:
    path = begin(client)
    told = [send(client, path, 0, CONTENT[:1000]), send(client, path, 1000, CONTENT[1000:])]

    assert told == [(204, "1000"), (204, "2560")]
    data = settings.uploads / path.rpartition("/")[2] / "data"
    assert data.read_bytes() == CONTENT


def test_interrupted_upload_reports_its_offset(client: TestClient) -> None:
    path = begin(client)
    send(client, path, 0, CONTENT[:700])
    asked = client.head(path)

    assert (asked.status_code, asked.headers["upload-offset"], asked.headers["upload-length"]) == (
        204,
        "700",
        "2560",
    )


@pytest.mark.parametrize("offset", [0, 1001])
def test_part_at_wrong_offset_is_rejected(client: TestClient, offset: int) -> None:
    path = begin(client)
    send(client, path, 0, CONTENT[:1000])

    assert send(client, path, offset, b"x")[0] == 409
    assert client.get(path).json()["offset"] == 1000


def test_part_beyond_announced_size_is_rejected(client: TestClient) -> None:
    path = begin(client, size=10)

    assert send(client, path, 0, CONTENT)[0] == 413
    assert client.get(path).json()["offset"] == 0


@pytest.mark.parametrize(
    ("name", "size", "status"), [("", 1, 422), ("a", 0, 422), ("a", 10**12, 413)]
)
def test_invalid_upload_name_or_size_is_rejected(
    client: TestClient, name: str, size: int, status: int
) -> None:
    answer = client.post("/api/v1/uploads", json={"filename": name, "size": size})

    assert answer.status_code == status


@pytest.mark.parametrize("upload", ["0" * 32, "..", "%2e%2e%2fstudio.db", ".new-1"])
def test_unknown_upload_returns_404(client: TestClient, upload: str) -> None:
    assert client.head(f"/api/v1/uploads/{upload}").status_code == 404


def test_concurrent_part_is_rejected(client: TestClient, settings: Settings) -> None:
    path = begin(client)
    with uploads.open_writer(settings.uploads, path.rpartition("/")[2], 0):
        assert send(client, path, 0, b"x")[0] == 409


def test_upload_can_be_cancelled(client: TestClient) -> None:
    path = begin(client)

    assert (client.delete(path).status_code, client.head(path).status_code) == (204, 404)


def test_unfinished_upload_expires(client: TestClient, settings: Settings) -> None:
    old, new = begin(client), begin(client)
    os.utime(settings.uploads / old.rpartition("/")[2] / "data", (0, 0))
    begin(client)

    assert (client.head(old).status_code, client.head(new).status_code) == (404, 204)


def test_only_complete_upload_can_be_imported(client: TestClient) -> None:
    path = begin(client)
    source = {"kind": "upload", "upload": path.rpartition("/")[2]}
    early = client.post("/api/v1/datasets", json={"source": source})
    send(client, path, 0, CONTENT)
    late = client.post("/api/v1/datasets", json={"source": source})

    assert (early.json()["error"]["message"], late.status_code, late.json()["status"]) == (
        "rows.jsonl is incomplete: 0 of 2560 bytes were uploaded.",
        202,
        "queued",
    )
