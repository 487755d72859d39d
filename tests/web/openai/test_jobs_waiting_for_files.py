"""Jobs that wait for their files: for a validation file to be measured by, or for a large file."""

import json
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine

from studio.db.session import read_session, unit_of_work
from studio.db.states import TaskStatus
from studio.db.tables import DatasetVersion, Run
from studio.protocols.events import Failed
from studio.runner.tasks.build_dataset import build
from studio.services.datasets import dataset_builds
from studio.services.queue import task_results
from studio.services.tasks import tasks
from studio.settings import Settings
from tests.web.openai.test_jobs import ROWS, ask, bring


@pytest.fixture
def files(client: TestClient) -> dict[str, Any]:
    """Bring two files: 40 rows to train on, 3 to be measured by."""
    some = b"".join(ROWS.splitlines(keepends=True)[:3])
    return {"training_file": bring(client)["id"], "validation_file": bring(client, some)["id"]}


def read(engine: Engine, settings: Settings, dataset_id: int) -> None:
    """Read a file as its chore would, and take what it came to."""
    with read_session(engine) as db:
        chore = dataset_builds.latest_task(db, dataset_id)
    assert chore is not None
    folder = tasks.task_dir(settings.tasks, chore)
    folder.files.mkdir(parents=True, exist_ok=True)
    result = build(folder, chore.params, lambda _phase, _share: None)
    with unit_of_work(engine) as db:
        found = tasks.get(db, chore.id or 0)
        with task_results.notify_on_end(db, found):
            found.result = json.loads(json.dumps(result))
            tasks.close_work(found, TaskStatus.SUCCEEDED)


def test_job_is_queued_once_validation_file_is_ready(
    client: TestClient, engine: Engine, settings: Settings, files: dict[str, Any]
) -> None:
    job = ask(client, **files).json()
    read(engine, settings, 2)

    assert client.get(f"/v1/fine_tuning/jobs/{job['id']}").json()["status"] == "queued"
    with read_session(engine) as db:
        run = db.get_one(Run, 1)
        version = db.get_one(DatasetVersion, run.dataset_version_id)
        assert (run.is_held, run.estimate != {}) == (False, True)
        assert (version.train_rows, version.validation_rows) == (40, 3)


def test_same_files_are_not_processed_twice(
    client: TestClient, engine: Engine, settings: Settings, files: dict[str, Any]
) -> None:
    ask(client, **files)
    read(engine, settings, 2)

    assert ask(client, **files).json()["status"] == "queued"


def test_job_without_validation_file_ignores_that_of_earlier_job(
    client: TestClient, engine: Engine, settings: Settings, files: dict[str, Any]
) -> None:
    ask(client, **files)
    read(engine, settings, 2)

    ask(client, training_file=files["training_file"])

    with read_session(engine) as db:
        run = db.get_one(Run, 2)
        version = db.get_one(DatasetVersion, run.dataset_version_id)
        assert (version.train_rows, version.validation_rows) == (40, 0)


def test_jobs_waiting_for_same_file_are_processed_in_turn(
    client: TestClient, engine: Engine, settings: Settings, files: dict[str, Any]
) -> None:
    some = b"".join(ROWS.splitlines(keepends=True)[5:10])
    other = bring(client, some)["id"]
    ask(client, **files)
    ask(client, **files | {"validation_file": other})

    read(engine, settings, 2)
    read(engine, settings, 2)

    with read_session(engine) as db:
        found = [db.get_one(Run, number).dataset_version_id for number in (1, 2)]
        held = [db.get_one(DatasetVersion, one).validation_rows for one in found]
    assert held == [3, 5]


def test_failed_file_build_fails_job_with_reason(
    client: TestClient, engine: Engine, files: dict[str, Any]
) -> None:
    ask(client, **files)
    with unit_of_work(engine) as db:
        chore = dataset_builds.latest_task(db, 2)
        assert chore is not None
        with task_results.notify_on_end(db, chore):
            tasks.fail_work(
                chore,
                Failed(
                    code="invalid",
                    message="All rows are excluded.",
                    hint="Change it and try again.",
                ),
            )

    job = client.get("/v1/fine_tuning/jobs/ftjob-1").json()

    assert (job["status"], job["error"]) == (
        "failed",
        {
            "code": "invalid_training_file",
            "message": "All rows are excluded. Change it and try again.",
            "param": "training_file",
        },
    )


def test_job_waits_for_large_file(
    client: TestClient, engine: Engine, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dataset_builds, "MAX_REQUEST_BYTES", 100)
    told = bring(client)
    job = ask(client, training_file=told["id"]).json()
    read(engine, settings, 2)

    assert (told["status"], job["status"]) == ("uploaded", "validating_files")
    assert client.get(f"/v1/files/{told['id']}").json()["status"] == "processed"
    assert client.get(f"/v1/fine_tuning/jobs/{job['id']}").json()["status"] == "queued"


def test_job_cancelled_while_files_are_processed_stays_cancelled(
    client: TestClient, engine: Engine, settings: Settings, files: dict[str, Any]
) -> None:
    job = ask(client, **files).json()
    client.post(f"/v1/fine_tuning/jobs/{job['id']}/cancel")
    read(engine, settings, 2)

    assert client.get(f"/v1/fine_tuning/jobs/{job['id']}").json()["status"] == "cancelled"
