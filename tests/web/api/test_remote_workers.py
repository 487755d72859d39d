"""What a worker on another machine may do over HTTP, call by call."""

import hashlib
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine
from sqlmodel import select

import studio
from studio.db.session import read_session, unit_of_work
from studio.db.states import RunStatus
from studio.db.tables import Attempt, QuarantinedGpu, Run
from studio.protocols.events import Event, EventLog, Failed, Finished, MetricsLogged, Started
from studio.services.runs import attempts, run_commands, runs
from studio.services.workers import workers
from studio.settings import Settings
from tests.support.factories import MACHINES, make_run

NAME = "remote-box-1"
BASE = f"/api/v1/workers/{NAME}"
HARDWARE = workers.HARDWARE_ADAPTER.dump_python(MACHINES["plain"], mode="json")
BEAT: dict[str, Any] = {"version": studio.__version__, "slots": 1, "hardware": HARDWARE}


def submit(engine: Engine, name: str = "first try") -> int:
    with unit_of_work(engine) as db:
        return make_run(db, name).id or 0


def claim(client: TestClient, *held: int, worker: str = NAME) -> dict[str, Any] | None:
    body = {**BEAT, "held": list(held)}
    answer = client.post(f"/api/v1/workers/{worker}/claim", json=body)
    assert answer.status_code == 200, answer.text
    assignment: dict[str, Any] | None = answer.json()["assignment"]
    return assignment


def lines(tmp_path: Path, *events: Event) -> bytes:
    log = EventLog(tmp_path / "made.jsonl")
    for event in events:
        log.append(event)
    return log.path.read_bytes()


def send(
    client: TestClient,
    data: bytes,
    offset: int = 0,
    *,
    behind: timedelta = timedelta(),
) -> httpx2.Response:
    query: dict[str, str | int] = {"offset": offset}
    query["clock"] = (datetime.now(UTC) - behind).isoformat()
    return client.post(f"{BASE}/attempts/1/1/streams/events", params=query, content=data)


def step(number: int) -> MetricsLogged:
    metrics = {"loss": 3.0 - number / 10}
    return MetricsLogged(step=number, epoch=0, tokens=number, seconds=number, metrics=metrics)


def read(engine: Engine, number: int = 1) -> Run:
    with read_session(engine) as db:
        return runs.get(db, number)


def expire(engine: Engine, number: int = 1) -> None:
    with unit_of_work(engine) as db:
        runs.get(db, number).lease_until = datetime.now(UTC) - timedelta(seconds=1)


STARTED = Started(total_steps=5, resolved={})


def test_worker_claims_the_next_run_and_gets_its_files(
    client: TestClient, engine: Engine, settings: Settings
) -> None:
    submit(engine)

    assignment = claim(client)

    assert assignment == {"run_id": 1, "attempt": 1, "gpu": None, "slots": 1, "packages": []}
    run = read(engine)
    assert (run.status, run.worker) == (RunStatus.STARTING, NAME)
    needed = client.get(f"{BASE}/attempts/1/1/files").json()
    assert [file["path"] for file in needed["files"]] == ["model/config.json", "data/train.jsonl"]
    assert str(settings.home) not in needed["job"]
    rows = (settings.datasets / "1" / "1" / "train.jsonl").read_bytes()
    sha256 = needed["files"][1]["sha256"]
    assert sha256 == hashlib.sha256(rows).hexdigest()
    address = f"{BASE}/attempts/1/1/files/{sha256}"
    part = client.get(address, headers={"Range": "bytes=10-"})
    assert (client.get(address).content, part.status_code, part.content) == (rows, 206, rows[10:])


def test_claim_whose_answer_was_lost_is_answered_again(client: TestClient, engine: Engine) -> None:
    submit(engine), submit(engine, "second")

    first, again = claim(client), claim(client)
    beyond = claim(client, 1)

    assert (first, beyond) == (again, None)
    assert read(engine, 2).status is RunStatus.QUEUED


def test_events_are_applied_once_whatever_is_repeated(
    client: TestClient, engine: Engine, tmp_path: Path
) -> None:
    submit(engine)
    claim(client)
    data = lines(tmp_path, STARTED, step(1), step(2))
    cut = len(data) - 7

    answers = [
        send(client, data[:cut]).json(),
        send(client, data[:cut]).json(),
        send(client, data[cut + 2 :], cut + 2).json(),
        send(client, data[cut:], cut).json(),
        send(client, data[cut:], cut).json(),
    ]

    assert answers == [
        {"offset": cut, "is_accepted": True},
        {"offset": cut, "is_accepted": False},
        {"offset": cut, "is_accepted": False},
        {"offset": len(data), "is_accepted": True},
        {"offset": len(data), "is_accepted": False},
    ]
    run = read(engine)
    assert (run.status, run.step, run.events_offset) == (RunStatus.RUNNING, 2, len(data))
    metrics = client.get("/api/v1/runs/1/metrics", params={"keys": "loss"}).json()
    assert metrics["x"] == [1, 2]


@pytest.mark.parametrize("minutes", [-5, 5])
def test_times_of_events_are_told_by_the_studios_clock(
    client: TestClient, engine: Engine, tmp_path: Path, minutes: int
) -> None:
    submit(engine)
    claim(client)
    behind = timedelta(minutes=minutes)
    there = datetime.now(UTC) - behind
    data = lines(tmp_path, Started(total_steps=5, resolved={}, at=there))

    send(client, data, behind=behind)

    started = read(engine).started_at
    assert started is not None
    assert abs(started - datetime.now(UTC)) < timedelta(seconds=20)


def test_run_that_another_worker_took_over_is_fenced(
    client: TestClient, engine: Engine, tmp_path: Path
) -> None:
    submit(engine)
    claim(client)
    expire(engine)
    with unit_of_work(engine) as db:
        (run,) = attempts.list_abandoned(db, "worker-1", alone=False)
        assert attempts.close_silent(db, run)
    claim(client, worker="remote-box-2")
    at, file = f"{BASE}/attempts/1/1", {"path": "a", "sha256": "0" * 64, "bytes": 1}

    refused = [
        send(client, lines(tmp_path, STARTED)),
        client.get(f"{at}/files"),
        client.get(f"{at}/files/{'0' * 64}"),
        client.post(f"{at}/uploads/{'0' * 64}?offset=0&size=1", content=b"x"),
        client.post(f"{at}/folders", json={"name": "artifacts", "files": [file]}),
        client.post(f"{at}/end", json={"exit_code": 0}),
    ]

    assert [(one.status_code, one.json()["error"]["code"]) for one in refused] == [
        (409, "fenced")
    ] * 6
    beat = client.post(f"{BASE}/beat", json={**BEAT, "attempts": [{"run_id": 1, "attempt": 1}]})
    assert beat.json() == {"attempts": [], "quarantined_gpus": {}}
    run = read(engine)
    assert (run.worker, run.attempt) == ("remote-box-2", 2)


def test_local_worker_leaves_runs_elsewhere_alone_while_their_lease_lives(
    client: TestClient, engine: Engine
) -> None:
    submit(engine)
    claim(client)

    with unit_of_work(engine) as db:
        alone = attempts.list_abandoned(db, "worker-1", alone=True)
        later = attempts.list_abandoned(db, "worker-1", alone=False)

    assert ([*alone], [*later]) == ([], [])


def test_silent_worker_loses_its_run_which_resumes(client: TestClient, engine: Engine) -> None:
    submit(engine)
    claim(client)
    expire(engine)

    with unit_of_work(engine) as db:
        (run,) = attempts.list_abandoned(db, "worker-1", alone=False)
        attempts.close_silent(db, run)

    run = read(engine)
    assert (run.status, run.resumes, run.worker) == (RunStatus.QUEUED, True, "")
    with read_session(engine) as db:
        (attempt,) = db.exec(select(Attempt))
    assert attempt.outcome == attempts.LOST


def test_studio_that_was_away_renews_leases(client: TestClient, engine: Engine) -> None:
    submit(engine)
    claim(client)
    expire(engine)

    with unit_of_work(engine) as db:
        attempts.renew_remote_leases(db)
        abandoned = attempts.list_abandoned(db, "worker-1", alone=False)

    assert [*abandoned] == []


def test_beat_extends_leases_and_brings_commands(client: TestClient, engine: Engine) -> None:
    submit(engine)
    claim(client)
    expire(engine)
    body = {**BEAT, "attempts": [{"run_id": 1, "attempt": 1}]}

    quiet = client.post(f"{BASE}/beat", json=body).json()
    lease = read(engine).lease_until
    with unit_of_work(engine) as db:
        run_commands.pause(db, 1)
        db.add(QuarantinedGpu(gpu="GPU-2", reason="runs failed on it"))
    told = client.post(f"{BASE}/beat", json=body).json()

    owned = {"run_id": 1, "attempt": 1, "command": None}
    assert quiet == {"attempts": [owned], "quarantined_gpus": {}}
    assert told["quarantined_gpus"] == {"GPU-2": "runs failed on it"}
    assert told["attempts"][0]["command"] == "pause"
    assert lease is not None
    assert lease > datetime.now(UTC)
    assert client.get("/api/v1/health").json()["status"] == "ok"


def test_beats_in_short_order_are_written_down_once(client: TestClient, engine: Engine) -> None:
    submit(engine)
    claim(client)
    body = {**BEAT, "attempts": [{"run_id": 1, "attempt": 1}]}
    client.post(f"{BASE}/beat", json=body)
    lease = read(engine).lease_until

    client.post(f"{BASE}/beat", json=body)
    again = read(engine).lease_until
    with unit_of_work(engine) as db:
        (worker,) = workers.list_alive(db)
        worker.beat_at -= timedelta(seconds=5)
    client.post(f"{BASE}/beat", json=body)

    later = read(engine).lease_until
    assert again == lease
    assert lease is not None
    assert later is not None
    assert later > lease


def test_draining_worker_asks_its_runs_to_return_to_the_queue(
    client: TestClient, engine: Engine
) -> None:
    submit(engine)
    claim(client)
    body = {**BEAT, "is_draining": True, "attempts": [{"run_id": 1, "attempt": 1}]}

    told = client.post(f"{BASE}/beat", json=body).json()
    client.post(f"{BASE}/attempts/1/1/end", json={"exit_code": 0})

    assert told["attempts"][0]["command"] == "drain"
    assert read(engine).status is RunStatus.QUEUED


def test_folder_is_in_place_once_all_its_files_have_arrived(
    client: TestClient, engine: Engine, settings: Settings, tmp_path: Path
) -> None:
    submit(engine)
    claim(client)
    contents = {"README.md": b"# A card\n", "deep/weights.bin": b"x" * 5000, "empty": b""}
    files = [
        {"path": path, "sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
        for path, data in contents.items()
    ]
    body = {"name": "artifacts", "files": files}
    folder = settings.runs / "1" / "artifacts"

    missing = client.post(f"{BASE}/attempts/1/1/folders", json=body).json()["missing"]
    assert [one["sha256"] for one in missing] == [one["sha256"] for one in files[:2]]
    assert not folder.exists()
    for file in files[:2]:
        data = contents[str(file["path"])]
        at = f"{BASE}/attempts/1/1/uploads/{file['sha256']}"
        for offset in (0, 0, 4):
            client.post(
                at,
                params={"offset": offset, "size": len(data)},
                content=data[offset:][: 4 if not offset else None],
            )
    placed = [client.post(f"{BASE}/attempts/1/1/folders", json=body).json() for _ in range(2)]
    send(client, lines(tmp_path, STARTED, Finished(metrics={"loss": 2.5})))
    ended = client.post(f"{BASE}/attempts/1/1/end", json={"exit_code": 0})

    assert placed == [{"missing": []}] * 2
    assert {path: (folder / path).read_bytes() for path in contents} == contents
    assert ended.json() == {"status": "succeeded"}
    assert [path.name for path in (settings.runs / "1").glob(".incoming*")] == []
    assert read(engine).worker == ""


def test_file_that_does_not_have_its_hash_is_dropped(client: TestClient, engine: Engine) -> None:
    submit(engine)
    claim(client)
    at = f"{BASE}/attempts/1/1/uploads/{'0' * 64}"

    answer = client.post(at, params={"offset": 0, "size": 3}, content=b"abc")
    longer = client.post(at, params={"offset": 0, "size": 3}, content=b"abcd")

    assert answer.json() == {"offset": 0, "is_whole": False}
    assert longer.status_code == 413


@pytest.mark.parametrize("path", ["../evil", "/etc/passwd", "a/../../b", "a//b", ".", "a\\b", ""])
def test_names_that_leave_the_folder_are_refused(
    client: TestClient, engine: Engine, path: str
) -> None:
    submit(engine)
    claim(client)
    file = {"path": path, "sha256": "0" * 64, "bytes": 1}

    answer = client.post(
        f"{BASE}/attempts/1/1/folders", json={"name": "artifacts", "files": [file]}
    )

    assert answer.status_code == 422


@pytest.mark.parametrize(
    "name", ["..", "checkpoints", "checkpoints/../x", "events.jsonl", "job.json"]
)
def test_only_what_a_run_makes_can_be_placed(client: TestClient, engine: Engine, name: str) -> None:
    submit(engine)
    claim(client)
    file = {"path": "a", "sha256": "0" * 64, "bytes": 1}

    answer = client.post(f"{BASE}/attempts/1/1/folders", json={"name": name, "files": [file]})

    assert answer.status_code == 422


def test_failed_launch_fails_the_run_with_its_reason(client: TestClient, engine: Engine) -> None:
    submit(engine)
    claim(client)
    failure = {"code": "disk_full", "message": "The disk is full.", "hint": "Make room."}

    client.post(f"{BASE}/attempts/1/1/end", json={"failure": failure})

    run = read(engine)
    assert (run.status, run.error_message) == (RunStatus.FAILED, "The disk is full.")


def test_failure_of_the_run_is_recorded(client: TestClient, engine: Engine, tmp_path: Path) -> None:
    submit(engine)
    claim(client)
    send(client, lines(tmp_path, STARTED, Failed(code="bug", message="It broke.")))
    client.post(f"{BASE}/attempts/1/1/end", json={"exit_code": 1})

    assert (read(engine).status, read(engine).error_message) == (RunStatus.FAILED, "It broke.")


def test_run_whose_data_is_gone_fails_at_its_claim(client: TestClient, engine: Engine) -> None:
    submit(engine)
    with unit_of_work(engine) as db:
        runs.get(db, 1).dataset_version_id = None

    assert claim(client) is None
    assert read(engine).status is RunStatus.FAILED


def test_worker_of_another_version_is_refused(client: TestClient) -> None:
    answers = [
        client.post(f"{BASE}/{call}", json={**BEAT, "version": "0.0.1"})
        for call in ("beat", "claim")
    ]

    assert [answer.status_code for answer in answers] == [409, 409]


def test_worker_that_left_is_no_longer_connected(client: TestClient) -> None:
    client.post(f"{BASE}/beat", json=BEAT)

    left = client.delete(BASE)

    assert (left.status_code, client.get("/api/v1/health").status_code) == (204, 503)
