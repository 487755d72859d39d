"""`/metrics` as Prometheus reads it, request ids, and what the log holds of a request."""

import json
import logging
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from io import StringIO
from typing import Any

import pytest
from fastapi import Request
from fastapi.testclient import TestClient
from sqlalchemy import Engine

from studio import logs
from studio.db.session import unit_of_work
from studio.db.states import RunStatus
from studio.db.tables import Worker
from studio.methods import RECIPE_ADAPTER
from studio.protocols.events import AlarmRaised
from studio.services.operations import prometheus_metrics
from studio.services.queue import queue
from studio.services.runs import attempts
from studio.services.workers import workers
from studio.settings import Settings
from studio.web.app import create_app
from tests.support.factories import make_finished_run, make_run, make_running
from tests.support.page_reader import parse_page

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\["\\n])*"'
LINE = re.compile(rf"({NAME})(?:\{{({LABEL}(?:,{LABEL})*)\}})? (-?[0-9.e+-]+)")

Told = dict[tuple[str, frozenset[tuple[str, str]]], float]


def parse(scraped: str) -> Told:
    """Read the text format strictly: each family announced once, each sample in its family."""
    told: Told = {}
    seen: dict[str, str] = {}
    family = ""
    assert scraped.endswith("\n")
    for line in scraped.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert (name, name) == (family, name)
            assert name not in seen
            seen[name] = kind
        elif line.startswith("# HELP "):
            family = line.split(" ")[2]
        else:
            name, labels, value = LINE.fullmatch(line).groups()  # type: ignore[union-attr] # fails as it should
            endings = ("_bucket", "_sum", "_count") if seen[family] == "histogram" else ("",)
            assert name in {family + ending for ending in endings}
            pairs = re.findall(LABEL, labels or "")
            key = frozenset((one.split("=")[0], one.split("=", 1)[1][1:-1]) for one in pairs)
            assert (name, key) not in told
            told[name, key] = float(value)
    return told


def scrape(client: TestClient) -> Told:
    answer = client.get("/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return parse(answer.text)


def of(told: Told, name: str, **labels: str) -> float:
    return told[name, frozenset(labels.items())]


def test_runs_are_counted_by_status(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        make_finished_run(db)
        make_run(db)
        make_run(db)
    told = scrape(client)

    counts = {status.value: of(told, "studio_runs", status=status) for status in RunStatus}
    assert counts == dict.fromkeys(RunStatus, 0) | {"succeeded": 1, "queued": 2}


def test_queue_metrics_are_exported(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        workers.heartbeat(db, Worker(name="one", pid=1, slots=2))
        make_running(db)
        make_run(db)
        queue.hold(db, make_run(db).id or 0, is_held=True)
    told = scrape(client)

    assert [
        of(told, f"studio_{name}") for name in ("slots", "slots_used", "queue_length", "queue_held")
    ] == [2, 1, 1, 1]


def test_oldest_queue_wait_is_exported(engine: Engine) -> None:
    now = datetime.now(UTC)
    with unit_of_work(engine) as db:
        make_run(db).created_at = now - timedelta(minutes=5)
        make_run(db)
        db.flush()
        found = prometheus_metrics.collect(db, now)

    assert found.oldest_wait_seconds == 300


def test_worker_silence_is_exported(engine: Engine) -> None:
    now = datetime.now(UTC)
    with unit_of_work(engine) as db:
        silent = prometheus_metrics.collect(db, now).worker_silence_seconds
        db.add(Worker(name="one", pid=1, slots=1, beat_at=now - timedelta(seconds=40)))
        db.flush()
        found = prometheus_metrics.collect(db, now)

    assert (silent, found.worker_silence_seconds, found.slots) == (None, 40, 0)


def test_run_durations_are_exported(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        for minutes in (2, 10, 100):
            run = make_finished_run(db)
            assert run.finished_at is not None
            run.claimed_at = run.finished_at - timedelta(minutes=minutes)
    told, name = scrape(client), "studio_run_duration_seconds"

    within = [of(told, f"{name}_bucket", le=str(bound)) for bound in (60, 300, 900, 3600, 14400)]
    assert within == [0, 1, 2, 2, 3]
    assert (of(told, f"{name}_bucket", le="+Inf"), of(told, f"{name}_count")) == (3, 3)
    assert of(told, f"{name}_sum") == pytest.approx(112 * 60, abs=0.01)


def test_tokens_and_alarms_are_exported(client: TestClient, engine: Engine) -> None:
    alarm = AlarmRaised(code="zero_loss", message="It is zero.", step=3)
    with unit_of_work(engine) as db:
        make_finished_run(db)
        attempts.apply_events(db, make_running(db), [alarm, alarm], 1)
    told = scrape(client)

    assert of(told, "studio_tokens") == 1000
    assert of(told, "studio_alarms", code="zero_loss") == 2


def test_requests_are_labelled_by_route_template(client: TestClient) -> None:
    for number in (1, 2, 3):
        client.get(f"/api/v1/runs/{number}")
    client.get("/wp-login.php")
    client.get("/static/icon.svg")
    told, name = scrape(client), "studio_http_request_duration_seconds_count"

    routes = {
        (labels["route"], labels["status"]): value
        for (key, pairs), value in told.items()
        if key == name and (labels := dict(pairs))
    }
    assert routes[("/api/v1/runs/{run_id}", "404")] == 3
    assert routes[("other", "404")] == 1
    assert not [route for route, _status in routes if "wp-login" in route or "icon" in route]


def test_histogram_buckets_are_cumulative(client: TestClient) -> None:
    client.get("/settings")
    told = scrape(client)

    found = [
        (float(labels["le"]), value)
        for (name, pairs), value in told.items()
        if name == "studio_http_request_duration_seconds_bucket"
        and (labels := dict(pairs))["route"] == "/settings"
    ]
    assert sorted(found) == sorted(found, key=lambda one: (one[1], one[0]))
    assert max(found) == (float("inf"), 1)


def test_unknown_http_methods_share_one_label(client: TestClient) -> None:
    for method in ("BREW", "STEEP"):
        client.request(method, "/settings")
    told = scrape(client)

    assert {dict(pairs).get("method") for _name, pairs in told} == {None, "other"}


def test_memory_and_database_size_are_exported(client: TestClient) -> None:
    told = scrape(client)

    assert of(told, "studio_database_bytes") > 4096
    assert of(told, "process_resident_memory_bytes") > 10**6


def test_stream_viewers_return_to_zero_when_stream_ends(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        make_finished_run(db)
    with client:
        client.get("/api/v1/runs/1/stream")
        assert of(scrape(client), "studio_stream_viewers") == 0


def test_each_response_has_unique_request_id(client: TestClient) -> None:
    first, second = (client.get("/settings").headers["x-request-id"] for _ in range(2))

    assert first != second


@pytest.mark.parametrize(("given", "is_kept"), [("from-proxy.1", True), ("a b\x7f", False)])
def test_valid_request_id_header_is_kept(client: TestClient, given: str, *, is_kept: bool) -> None:
    told = client.get("/settings", headers={"X-Request-ID": given}).headers["x-request-id"]

    assert (told == given) is is_kept


Lines = list[dict[str, Any]]


def logged(log: StringIO) -> Lines:
    return [json.loads(line) for line in log.getvalue().splitlines()]


@pytest.fixture
def log() -> Iterator[StringIO]:
    """Keep what the studio logs as a process writes it that has no terminal."""
    kept = StringIO()
    handler, logger = logging.StreamHandler(kept), logging.getLogger("studio")
    handler.setFormatter(logs._JsonFormatter("web"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield kept
    logger.removeHandler(handler)
    logger.setLevel(logging.NOTSET)


def test_changes_are_logged_with_run_and_request_id(
    client: TestClient, engine: Engine, log: StringIO
) -> None:
    with unit_of_work(engine) as db:
        make_run(db)
    answer = client.post("/api/v1/runs/1/cancel")

    [line] = [one for one in logged(log) if one["event"] == "request_answered"]
    assert {name: line[name] for name in ("method", "route", "status", "run_id")} == {
        "method": "POST",
        "route": "/api/v1/runs/{run_id}/cancel",
        "status": 200,
        "run_id": "1",
    }
    assert line["request_id"] == answer.headers["x-request-id"]


def test_read_requests_are_not_logged(client: TestClient, log: StringIO) -> None:
    client.get("/settings")

    assert [line for line in logged(log) if line["event"] == "request_answered"] == []


@pytest.fixture
def broken(engine: Engine, settings: Settings) -> TestClient:
    """Give a studio with a page that fails by a fault of ours, on what a person put in."""
    app = create_app(engine, settings)

    @app.get("/broken")
    def fail(request: Request) -> None:
        RECIPE_ADAPTER.validate_python({"method": "sft", "precision": request.headers["row"]})

    return TestClient(app, raise_server_exceptions=False)


def test_error_page_shows_request_id_found_in_log(broken: TestClient, log: StringIO) -> None:
    answer = broken.get("/broken", headers={"row": "ROW-OF-SOMEBODY"})

    shown = parse_page(answer.text).one("main").one("code").text
    [line] = [one for one in logged(log) if one["event"] == "request_failed"]
    assert (answer.status_code, shown) == (500, answer.headers["x-request-id"])
    assert line["request_id"] == shown


def test_request_headers_are_not_logged(broken: TestClient, log: StringIO) -> None:
    broken.get("/broken", headers={"row": "ROW-OF-SOMEBODY"})

    assert "ROW-OF-SOMEBODY" not in log.getvalue()


def test_rejected_request_is_logged_with_id_shown_on_page(
    client: TestClient, log: StringIO
) -> None:
    shown = parse_page(client.get("/runs/9").text).one("main").one("code").text

    [line] = [one for one in logged(log) if one["event"] == "request_answered"]
    assert (line["status"], line["request_id"]) == (404, shown)


def test_settings_repr_hides_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WEBHOOK_URL", "WEBHOOK_SECRET", "SMTP_URL"):
        monkeypatch.setenv(f"STUDIO_{name}", "https://hush")

    assert "hush" not in repr(Settings())


def test_line_breaks_in_log_values_are_escaped() -> None:
    record = logging.makeLogRecord({"msg": "request_answered", "path": "/a\nb\x1b[31m"})

    assert logs._TerminalFormatter().format(record).endswith(r"path='/a\nb\x1b[31m'")
