"""`studio gpus`: what it lists, and what it releases."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import Engine
from typer.testing import CliRunner

from studio.cli import app
from studio.db.session import unit_of_work
from studio.db.tables import QuarantinedGpu, Worker
from studio.hardware import Gpu
from studio.services.workers import workers
from studio.settings import Settings
from tests.support.factories import MACHINES

GPUS = tuple(
    Gpu(index=index, name="T4", memory_bytes=2**34, capability=(7, 5), uuid=f"GPU-{index}")
    for index in range(3)
)


@pytest.fixture
def run(engine: Engine, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> CliRunner:
    monkeypatch.setenv("STUDIO_HOME", str(settings.home))
    machine = replace(MACHINES["t4"], gpus=GPUS, gpu_faults={1: "it must be reset"})
    facts = workers.HARDWARE_ADAPTER.dump_python(machine, mode="json")
    with unit_of_work(engine) as db:
        workers.heartbeat(db, Worker(name="w", pid=1, slots=3, hardware=facts))
        db.add(QuarantinedGpu(gpu="GPU-2", reason="runs failed on it"))
    return CliRunner()


def states(run: CliRunner) -> list[str]:
    printed = run.invoke(app, ["gpus", "list", "--json"]).output
    return [gpu["state"] for gpu in json.loads(printed)]


def test_gpus_are_listed_and_released(run: CliRunner) -> None:
    table = run.invoke(app, ["gpus", "list"]).output

    assert "GPU-1" in table
    assert states(run) == ["works", "it must be reset", "runs failed on it"]
    assert run.invoke(app, ["gpus", "release", "GPU-2"]).output == "Runs may have GPU-2 again.\n"
    assert states(run) == ["works", "it must be reset", "works"]
    refused = run.invoke(app, ["gpus", "release", "GPU-2"])
    assert "is not in quarantine" in str(refused.exception)


def test_machine_without_gpus_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STUDIO_HOME", str(tmp_path / "other"))

    assert "No GPU was found" in CliRunner().invoke(app, ["gpus", "list"]).output
