"""What the settings page tells of machine, precisions and places."""

import os
import re
from dataclasses import replace

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine

from studio.db.session import read_session, unit_of_work
from studio.db.tables import QuarantinedGpu, Worker
from studio.graders.python_process import PythonPolicy, SealStatus, seal_status
from studio.hardware import Gpu, detect, package_versions
from studio.processes.start_time import process_start_time
from studio.recipe.precision import PRECISIONS
from studio.services.hardware import gpu_health
from studio.services.operations import health_checks
from studio.services.workers import workers
from studio.settings import Settings
from studio.web.settings import settings_page
from tests.support.factories import MACHINES
from tests.support.page_reader import Node, parse_page


def facts(client: TestClient) -> dict[str, str]:
    pairs = parse_page(client.get("/settings").text).all("dl", class_="facts")
    names = [name.text for pair in pairs for name in pair.all("dt")]
    values = [value.text for pair in pairs for value in pair.all("dd")]
    return dict(zip(names, values, strict=True))


def precisions(client: TestClient) -> list[Node]:
    return parse_page(client.get("/settings").text).one("tbody").all("tr")


def test_machine_is_shown(client: TestClient) -> None:
    assert facts(client)["Processor"] == detect().processor


def test_gpus_of_all_kinds_are_shown_with_their_faults(client: TestClient, engine: Engine) -> None:
    (t4,) = MACHINES["t4"].gpus
    a100 = Gpu(index=1, name="A100", memory_bytes=80 * 10**9, capability=(8, 0))
    faults = {0: "it must be reset"}
    machine = replace(MACHINES["t4"], gpus=(t4, a100), gpu_faults=faults)
    seen = workers.HARDWARE_ADAPTER.dump_python(machine, mode="json")
    with unit_of_work(engine) as db:
        workers.heartbeat(db, Worker(name="w", pid=1, slots=2, hardware=seen))

    told = facts(client)
    assert told["GPU 0"] == "Tesla T4, 17.2 GB, compute capability 7.5"
    assert told["GPU 1"] == "A100, 80 GB, compute capability 8.0"
    assert told["GPU 0, not used"] == "it must be reset"
    listed = client.get("/api/v1/hardware").json()["gpus"]
    assert [(gpu["name"], gpu["fault"]) for gpu in listed] == [
        ("Tesla T4", "it must be reset"),
        ("A100", ""),
    ]


@pytest.fixture
def quarantined(engine: Engine) -> str:
    """Put the GPU 1 of a worker in quarantine; return its UUID."""
    gpus = [replace(MACHINES["t4"].gpus[0], index=index, uuid=f"GPU-{index}") for index in (0, 1)]
    machine = replace(MACHINES["t4"], gpus=tuple(gpus), gpu_faults={1: gpu_health.REASON})
    seen = workers.HARDWARE_ADAPTER.dump_python(machine, mode="json")
    with unit_of_work(engine) as db:
        workers.heartbeat(db, Worker(name="w", pid=1, slots=2, hardware=seen))
        db.add(QuarantinedGpu(gpu="GPU-1", reason=gpu_health.REASON))
    return "GPU-1"


def test_gpu_in_quarantine_is_released(
    client: TestClient, engine: Engine, quarantined: str
) -> None:
    address = f"/settings/gpus/{quarantined}/release"
    before = facts(client)["GPU 1, not used"]
    form = parse_page(client.get("/settings").text).one("form", action=address)
    client.post(address)
    with read_session(engine) as db:
        left = gpu_health.list_quarantined(db)

    assert (before, form.one("button").text) == (gpu_health.REASON, "Release GPU 1")
    assert facts(client)["GPU 1, not used"] == "released, runs get it in a few seconds"
    assert (left, address in client.get("/settings").text) == ({}, False)


def test_gpu_is_released_over_the_api_once(client: TestClient, quarantined: str) -> None:
    address = f"/api/v1/hardware/gpus/{quarantined}/release"
    answers = [client.post(address) for _ in range(2)]

    assert [answer.status_code for answer in answers] == [200, 404]
    assert [gpu["uuid"] for gpu in answers[0].json()["gpus"]] == ["GPU-0", quarantined]


def test_training_packages_are_shown(client: TestClient) -> None:
    told = facts(client)

    assert {name: told[name] for name in package_versions()} == package_versions()


def test_paths_are_shown(client: TestClient, settings: Settings) -> None:
    assert facts(client)["Database"] == str(settings.database_file)


def test_each_precision_shows_its_support(client: TestClient) -> None:
    expected = [
        (mode.title, f"No: {refused}" if refused else mode.warning(detect()) or "✓ yes")
        for mode in PRECISIONS.values()
        for refused in (mode.unsupported_reason(detect()),)
    ]

    rows = [(row.one("th").text, row.all("td")[0].text) for row in precisions(client)]
    assert rows == expected


def test_data_safety_checks_are_shown(client: TestClient, settings: Settings) -> None:
    (told,) = parse_page(client.get("/settings").text).all("ul", class_="findings")

    assert [one.text for one in told.all("li")] == [
        f"{'✓' if finding.good else '✗'} {finding.text}"
        for finding in health_checks.check_home(settings)
    ]


def test_seal_of_graders_is_shown(client: TestClient) -> None:
    status = seal_status()
    expected = settings_page._describe_graders("sealed", status)

    assert facts(client)["Python graders"] == expected
    assert expected.startswith("refused, " if status.reason else "run sealed by ")


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("sealed", "refused, because they cannot be sealed: no seccomp"),
        ("trusted", "run, but are not sealed: no seccomp"),
        ("off", "turned off"),
    ],
)
def test_missing_seal_of_graders_is_shown(policy: PythonPolicy, expected: str) -> None:
    status = SealStatus((), "no seccomp")

    assert settings_page._describe_graders(policy, status) == expected


def test_missing_launcher_is_shown_as_off(client: TestClient) -> None:
    assert facts(client)["Prefork server"] == "off"


def test_launcher_is_shown_with_memory(client: TestClient, settings: Settings) -> None:
    pid = os.getpid()
    workers.write_launcher(
        settings,
        workers.LauncherStatus(state="ready", pid=pid, started=process_start_time(pid)),
    )

    told = facts(client)["Prefork server"]
    assert re.fullmatch(r"ready, uses [1-9]\d* MB", told)


def test_dead_launcher_is_shown_as_off(client: TestClient, settings: Settings) -> None:
    workers.write_launcher(
        settings, workers.LauncherStatus(state="ready", pid=os.getpid(), started=1)
    )

    assert facts(client)["Prefork server"] == "off"


def test_broken_launcher_shows_reason(client: TestClient, settings: Settings) -> None:
    workers.write_launcher(settings, workers.LauncherStatus(state="broken", why="It has threads."))

    assert facts(client)["Prefork server"] == "not available. It has threads."
