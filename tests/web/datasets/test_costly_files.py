"""Small files that cost much: refused with the number and the limit, or read by a task."""

import io
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from fastapi.testclient import TestClient
from pyarrow import parquet
from sqlalchemy import Engine

from studio.db.session import read_session
from studio.errors import TooLargeError
from studio.intake.files import limits
from studio.intake.files.limits import MAX_BLANK_LINES
from studio.protocols.tasks import TaskDir
from studio.runner.tasks.build_dataset import build
from studio.services.datasets import dataset_builds


def upload(client: TestClient, filename: str, content: bytes, **fields: str) -> Any:  # noqa: ANN401 -- the client's response
    return client.post("/api/v1/datasets", files={"file": (filename, content)}, data=fields)


@pytest.mark.parametrize("fields", [{}, {"draft": "true"}])
def test_too_many_columns_are_rejected(client: TestClient, fields: dict[str, str]) -> None:
    names = ",".join(f"c{i}" for i in range(20_000))

    answer = upload(client, "wide.csv", f"{names}\n{names}\n".encode(), **fields)

    assert answer.status_code == 413
    assert answer.json()["error"]["param"] == "file"
    assert answer.json()["error"]["message"] == ("The file has 20,000 columns; the limit is 1,000.")
    assert len(client.get("/api/v1/datasets").json()["data"]) == 1


@pytest.mark.parametrize("path", ["/api/v1/datasets", "/v1/files"])
def test_too_many_blank_lines_are_rejected(client: TestClient, path: str) -> None:
    fields = {"purpose": "fine-tune"} if path == "/v1/files" else {}
    file = ("blank.jsonl", b"\n" * (MAX_BLANK_LINES + 1))

    answer = client.post(path, files={"file": file}, data=fields)

    assert answer.status_code == 413
    assert "more than 1,100,000 consecutive blank lines" in answer.json()["error"]["message"]


@pytest.mark.slow
def test_huge_parquet_dictionary_is_processed_by_task_and_rejected(
    client: TestClient, engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_REQUEST_SECONDS", 0.0)
    words = pa.DictionaryArray.from_arrays(pa.array([0] * 200, pa.int32()), ["x" * 10_000_000])
    packed = io.BytesIO()
    parquet.write_table(pa.table({"text": words}), packed, compression="zstd")

    answer = upload(client, "words.parquet", packed.getvalue())

    assert len(packed.getvalue()) < 1100
    assert (answer.status_code, answer.json()["status"]) == (201, "building")
    assert "Processing a dataset" in client.get(f"/datasets/{answer.json()['id']}").text
    with read_session(engine) as db:
        chore = dataset_builds.latest_task(db, answer.json()["id"])
    assert chore is not None
    folder = TaskDir(tmp_path / "task")
    folder.files.mkdir(parents=True)
    with pytest.raises(TooLargeError, match=r"unpacks to more than 2\d\d MB; the limit is 1,000"):
        build(folder, chore.params, lambda _phase, _share: None)
