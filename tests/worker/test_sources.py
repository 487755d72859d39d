"""Data from elsewhere, from being asked for to being a data set: by a worker and real processes."""

import hashlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine

from studio.data_sources import (
    LocalFileSource,
    S3Source,
    SampleSource,
    Source,
    UploadSource,
    UrlSource,
)
from studio.db.session import read_session, unit_of_work
from studio.db.states import DatasetStatus, TaskStatus
from studio.db.tables import Dataset
from studio.db.tasks import Task
from studio.services.accounts import secrets
from studio.services.datasets import datasets, import_sources, uploads
from studio.settings import Settings
from studio.starter.samples import SAMPLES, SampleName
from studio.worker.loop import WorkerLoop
from studio.worker.processes.launcher import LocalLauncher
from tests.fakes.file_server import FileServer
from tests.fakes.s3_signature import SignatureCheck
from tests.support.worker_processes import stop_processes, wait_until_final

ROWS = b"".join(b'{"prompt": "What is %d?", "completion": "%d."}\n' % (i, i) for i in range(500))


@pytest.fixture
def settings(settings: Settings, tmp_path: Path) -> Settings:
    opened = tmp_path / "opened"
    opened.mkdir()
    (opened / "rows.jsonl").write_bytes(ROWS)
    given = {"import_folders": (opened,), "allow_internal_addresses": True}
    return settings.model_copy(update=given)


@pytest.fixture
def loop(
    engine: Engine, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> Iterator[WorkerLoop]:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    loop = WorkerLoop(engine, settings, LocalLauncher())
    yield loop
    stop_processes(loop)


def bring(loop: WorkerLoop, source: Source, name: str = "") -> Task:
    """Have a file brought, and wait for what becomes of it."""
    with unit_of_work(loop.engine) as db:
        asked = import_sources.enqueue_import(db, loop.settings, source, name).id or 0
    return wait_until_final(loop, asked)


def made(loop: WorkerLoop, chore: Task) -> Dataset:
    assert (chore.status, chore.error_message) == (TaskStatus.SUCCEEDED, "")
    with read_session(loop.engine) as db:
        return datasets.get(db, chore.result["dataset_id"])


def test_file_from_import_folder_becomes_draft(loop: WorkerLoop) -> None:
    source = loop.settings.import_folders[0] / "rows.jsonl"
    dataset = made(loop, bring(loop, LocalFileSource(path=str(source)), "from a folder"))

    told = (dataset.name, dataset.filename, dataset.status, dataset.source, dataset.bytes)
    expected = ("from a folder", "rows.jsonl", DatasetStatus.DRAFT, str(source), len(ROWS))
    assert told == expected
    assert dataset.sha256 == hashlib.sha256(ROWS).hexdigest()
    assert source.read_bytes() == ROWS


def test_url_import_resumes_and_removes_url_key(loop: WorkerLoop, site: FileServer) -> None:
    url = site.put("/rows.jsonl", ROWS, cuts=[10_000])
    chore = bring(loop, UrlSource(url=f"{url}?key=secret"))
    dataset = made(loop, chore)

    assert (dataset.source, dataset.bytes, chore.params) == (url, len(ROWS), {})
    assert [wanted for _, wanted in site.asked] == ["", "bytes=10000-"]


@pytest.mark.parametrize(
    ("secret", "says"),
    [("right", ""), ("wrong", "The studio's secret key does not match its access key.")],
)
def test_s3_import_uses_stored_keys(
    loop: WorkerLoop, site: FileServer, monkeypatch: pytest.MonkeyPatch, secret: str, says: str
) -> None:
    pytest.importorskip("s3fs", reason="the extra s3 is not installed")
    monkeypatch.setenv("STUDIO_S3_ENDPOINT", site.url)
    site.put("/bucket/rows.jsonl", ROWS)
    site.check = SignatureCheck("AKIAEXAMPLE", "right")
    with unit_of_work(loop.engine) as db:
        secrets.store(db, loop.settings, "s3_key", "AKIAEXAMPLE", "ann")
        secrets.store(db, loop.settings, "s3_secret", secret, "ann")

    chore = bring(loop, S3Source(url="s3://bucket/rows.jsonl"))

    assert chore.error_message == says
    assert chore.status is (TaskStatus.FAILED if says else TaskStatus.SUCCEEDED)


def test_chunked_upload_becomes_draft(loop: WorkerLoop) -> None:
    folder = loop.settings.uploads
    sent = uploads.create(folder, "rows.jsonl", len(ROWS), 10**6)
    for start in (0, 9000):
        with uploads.open_writer(folder, sent.id, start) as writer:
            writer.write(ROWS[start : 9000 if not start else None])
    dataset = made(loop, bring(loop, UploadSource(upload=sent.id)))

    assert (dataset.name, dataset.source, dataset.bytes) == ("rows", "upload", len(ROWS))


@pytest.mark.parametrize("name", SAMPLES)
def test_sample_becomes_draft(loop: WorkerLoop, name: SampleName) -> None:
    dataset = made(loop, bring(loop, SampleSource(id=name)))

    told = (dataset.name, dataset.filename, dataset.status, dataset.source)
    assert told == (f"sample-{name}", f"sample-{name}.jsonl", DatasetStatus.DRAFT, "sample")


def test_duplicate_dataset_name_gets_number(loop: WorkerLoop, site: FileServer) -> None:
    names = [
        made(loop, bring(loop, UrlSource(url=site.put(path, ROWS)))).name
        for path in ("/a/rows.jsonl", "/b/rows.jsonl")
    ]
    assert names == ["rows", "rows 2"]


def test_import_of_empty_file_fails(loop: WorkerLoop, site: FileServer) -> None:
    chore = bring(loop, UrlSource(url=site.put("/empty.jsonl", b"")))

    assert (chore.status, chore.error_code) == (TaskStatus.FAILED, "invalid")


def test_import_of_missing_file_fails_with_status(loop: WorkerLoop, site: FileServer) -> None:
    chore = bring(loop, UrlSource(url=f"{site.url}/missing"))

    assert chore.error_message == "The requested file does not exist (status 404)."
