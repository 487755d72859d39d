"""A studio whose runs train on a cluster; it is killed while they do, and finds them again."""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from studio.protocols.run_dir import RunDir
from tests.support import ray_cluster, slurm_cluster
from tests.support.live_studio import (
    Studio,
    get_run,
    make_studio,
    metric_steps,
    starter_home,
    submit_run,
)
from tests.support.slurm_cluster import SlurmCluster
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow
on_slurm = pytest.mark.usefixtures("_train_on_slurm")

__all__ = ["make_studio", "starter_home"]

FAKE = Path(__file__).parents[2] / "fakes" / "runner.py"


@pytest.fixture(scope="module")
def slurm() -> Iterator[SlurmCluster]:
    if why := slurm_cluster.missing_reason():
        pytest.skip(why)
    with slurm_cluster.run_cluster() as cluster:
        yield cluster


@pytest.fixture
def _train_on_slurm(slurm: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    assert slurm.config.exists()
    monkeypatch.setenv("STUDIO_LAUNCHER", "slurm")
    monkeypatch.setenv("STUDIO_JOB_GPUS", "0")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))


@pytest.fixture
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a fake runner play each training process."""
    program = tmp_path / "python"
    program.write_text(
        f'#!/bin/sh\nif [ "$2" = studio.runner ]; then shift 2; '
        f'exec "{sys.executable}" "{FAKE}" wait "$@"; fi\nexec "{sys.executable}" "$@"\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("STUDIO_JOB_PYTHON", str(program))


def jobs(slurm: SlurmCluster) -> list[str]:
    return slurm.ask("squeue", "--noheader", "--states=all", "--format=%j").split()


def kinds(studio: Studio, run: int) -> list[str]:
    events = RunDir(studio.home / "runs" / str(run)).events
    return [event.kind for event in events.read(0)[0]] if events.path.exists() else []


@on_slurm
@pytest.mark.usefixtures("played")
def test_killed_studio_adopts_its_jobs(
    slurm: SlurmCluster, make_studio: Callable[[], Studio]
) -> None:
    studio = make_studio()
    run = submit_run(studio)
    wait_until(lambda: "progressed" in kinds(studio, run))
    studio.kill()
    studio.wait()
    for step in range(1, 5):
        (studio.home / "runs" / str(run) / f"go-{step}").touch()
    studio.start()
    wait_until(lambda: get_run(studio, run)["status"] == "running")
    (studio.home / "runs" / str(run) / "go-5").touch()
    wait_until(lambda: get_run(studio, run)["status"] == "succeeded")

    assert get_run(studio, run)["attempt"] == 1
    assert kinds(studio, run).count("started") == 1
    assert len([name for name in jobs(slurm) if name.endswith(f"-{run}-1")]) == 1


@on_slurm
@pytest.mark.usefixtures("played")
def test_studio_outlasts_a_controller_that_is_away(
    slurm: SlurmCluster, make_studio: Callable[[], Studio]
) -> None:
    studio = make_studio()
    run = submit_run(studio)
    wait_until(lambda: "progressed" in kinds(studio, run))
    slurm.go_away()
    try:
        wait_until(lambda: "cannot reach" in studio.api.get("/health").text)
        assert get_run(studio, run)["status"] == "running"
        for step in range(1, 6):
            (studio.home / "runs" / str(run) / f"go-{step}").touch()
        wait_until(lambda: get_run(studio, run)["status"] == "succeeded")
    finally:
        slurm.come_back()
    wait_until(lambda: "cannot reach" not in studio.api.get("/health").text)


@on_slurm
def test_real_training_goes_on_while_its_studio_is_dead(
    slurm: SlurmCluster, make_studio: Callable[[], Studio]
) -> None:
    assert slurm.config.exists()
    studio = make_studio()
    run = submit_run(studio, max_steps=80)
    wait_until(lambda: bool(metric_steps(studio, run)))
    studio.kill()
    studio.wait()
    seen = kinds(studio, run).count("progressed")
    wait_until(lambda: kinds(studio, run).count("progressed") > seen)
    studio.start()
    wait_until(lambda: get_run(studio, run)["status"] in {"succeeded", "failed"})

    told = get_run(studio, run)
    assert (told["status"], told["attempt"], told["step"]) == ("succeeded", 1, 80)
    steps = metric_steps(studio, run)
    assert steps == sorted(set(steps))
    assert kinds(studio, run).count("started") == 1


@on_slurm
def test_cancelled_while_it_waits(
    slurm: SlurmCluster, make_studio: Callable[[], Studio], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STUDIO_SLURM_OPTIONS", "--begin=now+1hour")
    studio = make_studio()
    run = submit_run(studio)
    wait_until(lambda: get_run(studio, run)["phase"] == "waiting: BeginTime")
    studio.api.post(f"/runs/{run}/cancel").raise_for_status()
    wait_until(lambda: get_run(studio, run)["status"] == "cancelled")

    assert kinds(studio, run) == []
    states = slurm.ask("squeue", "--noheader", "--states=all", "--format=%j %T")
    assert any(line.split()[1] == "CANCELLED" for line in states.splitlines())


def test_real_training_on_ray(
    make_studio: Callable[[], Studio], monkeypatch: pytest.MonkeyPatch
) -> None:
    if why := ray_cluster.missing_reason():
        pytest.skip(why)
    with ray_cluster.run_cluster() as ray:
        monkeypatch.setenv("STUDIO_LAUNCHER", "ray")
        monkeypatch.setenv("STUDIO_RAY_ADDRESS", ray.url)
        monkeypatch.setenv("STUDIO_RAY_TOKEN", ray.token)
        monkeypatch.setenv("STUDIO_JOB_GPUS", "0")
        studio = make_studio()
        run = submit_run(studio)
        wait_until(lambda: get_run(studio, run)["status"] in {"succeeded", "failed"})
        told = get_run(studio, run)
        log = (studio.home / "studio.log").read_text()

    assert (told["status"], told["attempt"], told["step"]) == ("succeeded", 1, 30)
    assert ray.token not in log
