"""Endpoints with a real program as their server: start, health, crashes, idleness, adoption."""

import http.client
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path

import psutil
import pytest
from sqlalchemy import Engine

from studio.db.column_types import now
from studio.db.endpoints import Endpoint
from studio.db.session import read_session, unit_of_work
from studio.db.states import EndpointState, RunStatus
from studio.errors import ConflictError, UnavailableError
from studio.services.endpoints import endpoints, lifecycle, usage
from studio.services.endpoints.reasons import GAVE_UP, UNUSED
from studio.services.exports import exports
from studio.services.queue import overview
from studio.services.runs import bulk_actions, runs
from studio.settings import Settings
from studio.worker.loop import WorkerLoop
from studio.worker.processes.launcher import LocalLauncher
from studio.worker.serving import engine_process
from tests.support import served_exports
from tests.support.factories import make_run
from tests.support.waiting import wait_until

RUNNER = str(Path(__file__).parents[1] / "fakes" / "runner.py")
PATIENCE_SECONDS = 240

Start = Callable[..., WorkerLoop]
HOURS_AGO = timedelta(hours=5)


@pytest.fixture(autouse=True)
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a llama-server on PATH."""
    program = served_exports.write_program(tmp_path / "bin")
    monkeypatch.setenv("PATH", os.pathsep.join([str(program.parent), os.environ["PATH"]]))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    return program


@pytest.fixture
def start(engine: Engine, settings: Settings) -> Iterator[Start]:
    """Make worker loops; whatever they left running is killed."""
    loops: list[WorkerLoop] = []

    def begin(part: str = "succeed", slots: int = 1) -> WorkerLoop:
        launcher = LocalLauncher(command=(sys.executable, RUNNER, part), wanted_slots=slots)
        loop = WorkerLoop(engine, settings, launcher)
        loops.append(loop)
        loop.adopt(alone=True)
        return loop

    yield begin
    for loop in loops:
        for attempt in loop.monitored.values():
            loop.launcher.kill(attempt.handle)
            wait_until(partial(has_ended, loop, attempt.handle))
        loop.endpoints.close()
        for served in loop.endpoints.monitored.values():
            served.process.kill()
            _ = served.process.child and served.process.child.wait()
    for endpoint_id in engine_process.list_marked(settings.home):
        engine_process.kill_marked(settings.home, endpoint_id)


def has_ended(loop: WorkerLoop, handle: str) -> bool:
    return loop.launcher.poll(handle) is not None


def until(loop: WorkerLoop, is_so: Callable[[Endpoint], bool], endpoint_id: int = 1) -> Endpoint:
    """Let the worker tick until something is so of an endpoint."""
    pause = threading.Event()
    for _ in range(PATIENCE_SECONDS * 100):
        loop.tick()
        with read_session(loop.engine) as db:
            row = endpoints.get(db, endpoint_id)
        if is_so(row):
            return row
        pause.wait(0.01)
    raise AssertionError(f"Still {row}.")


def has_crashed(count: int, row: Endpoint) -> bool:
    return row.crashes == count


def ready(row: Endpoint) -> bool:
    return row.state is EndpointState.READY


def has_no_process(row: Endpoint) -> bool:
    return row.pid is None


def create(
    engine: Engine,
    settings: Settings,
    name: str = "pets",
    idle_minutes: int | None = 30,
    **part: object,
) -> int:
    with unit_of_work(engine) as db:
        source = served_exports.add(db, settings, **part)
        row = endpoints.create(db, settings, name, source, "llama.cpp", idle_minutes)
        return row.id or 0


def change(engine: Engine, do: Callable[[Endpoint], object], endpoint_id: int = 1) -> None:
    with unit_of_work(engine) as db:
        do(endpoints.get(db, endpoint_id))


def ask(row: Endpoint, key: str) -> tuple[int, str]:
    """Ask the program itself, past the studio."""
    assert row.port is not None
    connection = http.client.HTTPConnection("127.0.0.1", row.port, timeout=30)
    body = json.dumps({"model": row.name, "messages": [{"role": "user", "content": "Hi"}]})
    connection.request("POST", "/v1/chat/completions", body, dict(lifecycle.headers(key)))
    answer = connection.getresponse()
    content = answer.read().decode()
    connection.close()
    return answer.status, content


def was_used_long_ago(row: Endpoint) -> None:
    row.ready_at = row.last_used_at = now() - HOURS_AGO
    row.busy_until = None


def test_endpoint_starts_and_answers_only_with_its_key(
    engine: Engine, settings: Settings, start: Start
) -> None:
    create(engine, settings)
    row = until(start(), ready)

    key = lifecycle.read_key(settings, row)
    assert json.loads(ask(row, key)[1])["choices"][0]["message"]["content"] == "Good."
    assert ask(row, "wrong") == (401, ask(row, "")[1])
    assert key not in row.locked_key
    assert key not in " ".join(psutil.Process(row.pid).cmdline())


def test_request_to_loading_endpoint_waits_for_it(
    engine: Engine, settings: Settings, start: Start, tmp_path: Path
) -> None:
    create(engine, settings, loads_until=str(tmp_path / "loaded"))
    loop = start()
    until(loop, lambda row: row.pid is not None)
    for _ in range(3):
        loop.tick()
    with unit_of_work(engine) as db:
        assert usage.take(db, 1) is None
        assert endpoints.get(db, 1).state is EndpointState.STARTING

    (tmp_path / "loaded").touch()
    until(loop, ready)
    with unit_of_work(engine) as db:
        assert usage.take(db, 1) is not None


def test_crashed_endpoint_starts_again(engine: Engine, settings: Settings, start: Start) -> None:
    create(engine, settings)
    loop = start()
    first = until(loop, ready)
    psutil.Process(first.pid).kill()

    crashed = until(loop, lambda row: row.crashes == 1)
    assert crashed.error_message == "llama.cpp ended with signal 9."
    assert crashed.note == "starts again in 1 s"
    second = until(loop, ready)
    assert second.pid != first.pid
    assert (second.error_message, second.note) == ("", "")


def test_endpoint_that_keeps_crashing_fails_with_last_lines_of_its_log(
    engine: Engine, settings: Settings, start: Start
) -> None:
    create(engine, settings, exits_at_start=3)
    loop = start()

    for count in range(1, lifecycle.MAX_CRASHES + 1):
        until(loop, partial(has_crashed, count))
        loop.endpoints._retry_at.clear()  # The wait between two tries is another test's.
    with read_session(engine) as db:
        row = endpoints.get(db, 1)
        assert (row.state, row.pid) == (EndpointState.FAILING, None)
        assert row.error_message == "llama.cpp ended with code 3."
        assert "unknown architecture: sparrow" in row.error_hint
        obstacle = usage.find_obstacle(row)
    assert isinstance(obstacle, UnavailableError)
    assert obstacle.message.startswith("The endpoint pets failed: llama.cpp ended with code 3.")

    change(engine, endpoints.start)
    assert until(loop, lambda row: row.crashes == 1).state is EndpointState.STARTING


def test_tries_are_further_and_further_apart() -> None:
    waits = [lifecycle.backoff_seconds(crashes) for crashes in range(8)]

    assert waits == [0, 1, 2, 4, 8, 16, 30, 30]


def test_unused_endpoint_stops_and_starts_on_request(
    engine: Engine, settings: Settings, start: Start
) -> None:
    create(engine, settings, idle_minutes=10)
    loop = start()
    first = until(loop, ready)
    change(engine, was_used_long_ago)
    idle = until(loop, has_no_process)
    assert (idle.state, idle.note) == (EndpointState.IDLE, UNUSED)
    for _ in range(3):
        loop.tick()
    assert not psutil.pid_exists(first.pid or 0)

    with unit_of_work(engine) as db:
        assert usage.begin(db, "pets") is not None
    assert until(loop, ready).requests == 1


def test_endpoint_that_answers_is_not_idle(
    engine: Engine, settings: Settings, start: Start
) -> None:
    create(engine, settings, idle_minutes=1)
    loop = start()
    until(loop, ready)

    def answers(row: Endpoint) -> None:
        was_used_long_ago(row)
        row.busy_until = now() + timedelta(seconds=60)

    change(engine, answers)
    for _ in range(5):
        loop.tick()
    with read_session(engine) as db:
        assert endpoints.get(db, 1).state is EndpointState.READY


def test_next_worker_adopts_running_endpoint(
    engine: Engine, settings: Settings, start: Start
) -> None:
    create(engine, settings)
    first = until(start(), ready)  # This worker is never asked again, as if it had been killed.

    loop = start()
    row = until(loop, ready)
    assert (row.pid, row.port) == (first.pid, first.port)
    assert list(loop.endpoints.monitored) == [1]
    assert ask(row, lifecycle.read_key(settings, row))[0] == 200

    change(engine, endpoints.stop)
    until(loop, has_no_process)


def test_endpoint_that_died_without_worker_starts_again(
    engine: Engine, settings: Settings, start: Start
) -> None:
    create(engine, settings)
    first = start()
    row = until(first, ready)
    psutil.Process(row.pid).kill()
    child = first.endpoints.monitored.pop(1).process.child
    assert child is not None
    child.wait()

    assert until(start(), lambda one: ready(one) and one.pid != row.pid).crashes == 0


def test_process_with_reused_pid_is_left_alone(
    engine: Engine, settings: Settings, start: Start
) -> None:
    create(engine, settings)

    def records_stranger(row: Endpoint) -> None:
        row.pid, row.pid_started, row.port = os.getppid(), 1.5, 1
        row.state = EndpointState.READY

    change(engine, records_stranger)
    row = until(start(), ready)

    assert row.pid != os.getppid()
    assert psutil.pid_exists(os.getppid())


def test_process_that_was_never_recorded_is_ended(
    engine: Engine, settings: Settings, start: Start
) -> None:
    create(engine, settings)
    row = until(start(), ready)
    change(engine, lifecycle.forget_process)
    change(engine, endpoints.stop)

    start()
    wait_until(lambda: not engine_process.list_marked(settings.home).get(1))
    assert row.pid


def test_stop_ends_whole_process_group(engine: Engine, settings: Settings, start: Start) -> None:
    create(engine, settings, has_child=True)
    loop = start()
    until(loop, ready)
    started = engine_process.list_marked(settings.home)[1]
    assert len(started) >= 2

    change(engine, endpoints.stop)
    until(loop, has_no_process)
    wait_until(lambda: not engine_process.list_marked(settings.home).get(1))


def test_program_that_ignores_the_request_to_end_is_killed(
    engine: Engine, settings: Settings, start: Start
) -> None:
    create(engine, settings, ignores_end=True)
    loop = start()
    until(loop, ready)
    change(engine, endpoints.stop)

    served = loop.endpoints.monitored[1]
    loop.tick()
    assert served.stopping_at is not None
    served.stopping_at -= 1000  # As if the time to end had passed.
    assert until(loop, has_no_process).state is EndpointState.STOPPED


def test_deleted_endpoint_ends(engine: Engine, settings: Settings, start: Start) -> None:
    create(engine, settings)
    loop = start()
    until(loop, ready)
    with unit_of_work(engine) as db:
        endpoints.delete(db, 1, settings.endpoint_logs)

    while loop.endpoints.monitored:
        loop.tick()
    assert not engine_process.list_marked(settings.home)
    assert not (settings.endpoint_logs / "1").exists()


def test_taken_port_is_not_mistaken_for_the_endpoint(
    engine: Engine, settings: Settings, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(engine, settings)
    other = until(start(slots=2), ready)
    create(engine, settings, name="birds")
    ports = [other.port, other.port]
    real = engine_process.free_port
    monkeypatch.setattr(engine_process, "free_port", lambda: ports.pop() if ports else real())

    birds = until(start(slots=2), lambda row: row.crashes == 1, 2)
    assert "Address already in use" in birds.error_hint
    assert until(start(slots=2), ready, 2).port != other.port


def test_missing_program_fails_in_words(
    engine: Engine, settings: Settings, start: Start, program: Path
) -> None:
    create(engine, settings)
    program.unlink()

    row = until(start(), lambda one: one.state is EndpointState.FAILING)
    assert row.error_message == "llama.cpp was not found: there is no program llama-server."
    assert "STUDIO_LLAMA_SERVER" in row.error_hint
    with unit_of_work(engine) as db:
        source = served_exports.add(db, settings)
        with pytest.raises(UnavailableError, match="was not found"):
            endpoints.create(db, settings, "other", source, "llama.cpp")


def test_served_run_and_export_cannot_be_deleted(engine: Engine, settings: Settings) -> None:
    create(engine, settings)

    with unit_of_work(engine) as db:
        row = endpoints.get(db, 1)
        reason = "is served by the endpoint pets"
        with pytest.raises(ConflictError, match=reason):
            exports.delete(db, row.run_id, row.export_id or 0, settings.runs)
        with pytest.raises(ConflictError, match=reason):
            bulk_actions.move_to_trash(db, [row.run_id])
        with pytest.raises(ConflictError, match=reason):
            runs.delete(db, row.run_id, settings.runs)
        endpoints.delete(db, 1, settings.endpoint_logs)
        exports.delete(db, row.run_id, row.export_id or 0, settings.runs)


def test_unused_endpoint_gives_its_slot_to_a_run(
    engine: Engine, settings: Settings, start: Start
) -> None:
    create(engine, settings)
    loop = start("wait")
    until(loop, ready)
    change(engine, was_used_long_ago_but_wanted)
    with unit_of_work(engine) as db:
        run_id = make_run(db).id or 0

    idle = until(loop, has_no_process)
    assert (idle.state, idle.note) == (EndpointState.IDLE, GAVE_UP)
    with read_session(engine) as db:
        usable = runs.get(db, run_id)
    until(loop, lambda _row: run_id in loop.monitored)
    with unit_of_work(engine) as db:
        usage.begin(db, "pets")
    waiting = until(loop, lambda row: bool(row.note) and row.note != GAVE_UP)
    assert waiting.note == f"waiting for run {run_id} to end"
    assert usable.id == run_id


def was_used_long_ago_but_wanted(row: Endpoint) -> None:
    row.ready_at = row.last_used_at = now() - timedelta(minutes=5)


def test_run_waits_until_endpoint_has_answered(
    engine: Engine, settings: Settings, start: Start
) -> None:
    create(engine, settings)
    loop = start("wait")
    until(loop, ready)
    change(engine, was_used_long_ago_but_wanted)
    with unit_of_work(engine) as db:
        assert usage.take(db, 1) is not None
        run_id = make_run(db).id or 0

    row = until(loop, lambda one: one.state is EndpointState.IDLE)
    for _ in range(10):
        loop.tick()
    assert psutil.pid_exists(row.pid or 0)
    with read_session(engine) as db:
        assert runs.get(db, run_id).status is RunStatus.QUEUED
        blocker = overview.find_slot_blocker(db)
    assert blocker is not None
    assert blocker.reason == "waiting for the endpoint pets to finish its answers"

    with unit_of_work(engine) as db:
        usage.end(db, 1, is_last=True)
    until(loop, has_no_process)
    until(loop, lambda _row: run_id in loop.monitored)


def test_requested_endpoint_takes_slot_of_unused_one(
    engine: Engine, settings: Settings, start: Start
) -> None:
    create(engine, settings)
    loop = start()
    until(loop, ready)
    change(engine, was_used_long_ago_but_wanted)
    create(engine, settings, name="birds")

    assert until(loop, ready, 2).name == "birds"
    with read_session(engine) as db:
        assert endpoints.get(db, 1).state is EndpointState.IDLE
