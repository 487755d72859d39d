"""What only a real cluster shows: queues, limits, refusals, and machines that die."""

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from studio.errors import StudioError
from studio.protocols.run_dir import RunDir
from studio.settings import Settings
from studio.worker.launchers import choice
from studio.worker.launchers.jobs.engine import EngineAwayError, JobRefusedError
from studio.worker.launchers.jobs.folder import JobFolder
from studio.worker.launchers.jobs.launcher import JobLauncher, Timing
from studio.worker.launchers.ray.engine import RayEngine
from studio.worker.launchers.slurm.engine import SlurmEngine
from studio.worker.processes.launcher import LaunchSpec
from tests.support import ray_cluster, slurm_cluster
from tests.support.ray_cluster import RayCluster
from tests.support.slurm_cluster import SlurmCluster
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

FAKE = str(Path(__file__).parents[2] / "fakes" / "runner.py")
QUICK = Timing(poll=0.2, longest_poll=0.5, silence=12, settle=1)


@pytest.fixture(scope="module")
def slurm() -> Iterator[SlurmCluster]:
    if why := slurm_cluster.missing_reason():
        pytest.skip(why)
    with slurm_cluster.run_cluster() as cluster:
        yield cluster


@pytest.fixture(scope="module")
def ray() -> Iterator[RayCluster]:
    if why := ray_cluster.missing_reason():
        pytest.skip(why)
    with ray_cluster.run_cluster() as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def _see_the_studio(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))


_numbers = iter(range(1, 1000))


def spec_in(folder: Path) -> LaunchSpec:
    run = RunDir(folder / "run")
    run.root.mkdir()
    run.job.write_text(json.dumps({"attempt": 1}))
    return LaunchSpec(run_id=next(_numbers), attempt=1, folder=run)


def kinds(spec: LaunchSpec) -> list[str]:
    there = spec.folder.events.path.exists()
    return [event.kind for event in spec.folder.events.read(0)[0]] if there else []


def has_ended(launcher: JobLauncher, handle: str) -> bool:
    return launcher.poll(handle) is not None


def test_slurm_says_why_a_job_waits(slurm: SlurmCluster, tmp_path: Path) -> None:
    launcher, spec = slurm.launcher((FAKE, "wait"), QUICK), spec_in(tmp_path)
    launcher.engine = SlurmEngine(("--begin=now+1hour",))
    launcher.open()
    handle = launcher.submit(spec)
    wait_until(lambda: launcher.waits_for(handle) == "BeginTime")
    launcher.stop(handle)
    wait_until(lambda: has_ended(launcher, handle))
    launcher.close()

    assert kinds(spec) == []


def test_slurm_refuses_in_words(slurm: SlurmCluster, tmp_path: Path) -> None:
    launcher = slurm.launcher((FAKE, "wait"), QUICK)
    launcher.engine = SlurmEngine(("--partition=nope",))
    launcher.open()
    handle = launcher.submit(spec_in(tmp_path))

    def is_refused() -> bool:
        try:
            launcher.poll(handle)
        except JobRefusedError as error:
            return "invalid partition" in str(error).lower()
        return False

    wait_until(is_refused)
    launcher.close()


@pytest.mark.parametrize("options", ["--partition=nope", "--nonsense"])
def test_worker_on_slurm_refuses_wrong_options(
    slurm: SlurmCluster, tmp_path: Path, options: str
) -> None:
    assert slurm.config.exists()
    with pytest.raises(StudioError, match="Slurm refuses the jobs of runs"):
        choice.choose(Settings(home=tmp_path, launcher="slurm", job_gpus=0, slurm_options=options))


def test_worker_on_slurm_refuses_gpus_that_do_not_exist(
    slurm: SlurmCluster, tmp_path: Path
) -> None:
    assert slurm.config.exists()
    with pytest.raises(StudioError, match=r"[Gg]eneric|gres"):
        choice.choose(Settings(home=tmp_path, launcher="slurm", job_gpus=1))


def test_time_limit_of_slurm_pauses_the_run(slurm: SlurmCluster, tmp_path: Path) -> None:
    launcher, spec = slurm.launcher((FAKE, "wait"), QUICK), spec_in(tmp_path)
    launcher.engine = SlurmEngine(("--time=1",))
    launcher.open()
    handle = launcher.submit(spec)
    wait_until(lambda: has_ended(launcher, handle))
    launcher.close()

    end = launcher.poll(handle)
    assert end is not None
    assert end.exit_code == 0
    assert kinds(spec)[-1] == "paused"


def test_machine_that_falls_silent_is_lost_though_slurm_calls_it_running(
    slurm: SlurmCluster, tmp_path: Path
) -> None:
    launcher, spec = slurm.launcher((FAKE, "wait"), QUICK), spec_in(tmp_path)
    launcher.open()
    handle = launcher.submit(spec)
    wait_until(lambda: "progressed" in kinds(spec))
    training = psutil.Process(int(spec.folder.lock.read_text().split()[0]))
    node = training.parent()
    assert node is not None
    node.send_signal(signal.SIGSTOP)
    wait_until(lambda: has_ended(launcher, handle))
    is_running = "RUNNING" in slurm.ask("squeue", "--noheader", f"--name={handle}", "--format=%T")
    wait_until(lambda: not training.is_running())
    launcher.close()

    end = launcher.poll(handle)
    assert end is not None
    assert (end.silent, is_running) == (True, True)


def test_ray_says_why_a_job_waits(ray: RayCluster, tmp_path: Path) -> None:
    launcher, spec = ray.launcher((FAKE, "wait"), QUICK), spec_in(tmp_path)
    launcher.engine = RayEngine(ray.url, ray.token, options={"entrypoint_num_cpus": 64})
    launcher.open()
    handle = launcher.submit(spec)
    wait_until(lambda: "waiting for resources" in (launcher.waits_for(handle) or ""))
    launcher.stop(handle)
    wait_until(lambda: has_ended(launcher, handle))
    launcher.close()

    assert kinds(spec) == []


def test_worker_on_ray_refuses_a_wrong_token(ray: RayCluster) -> None:
    with pytest.raises(EngineAwayError, match="token"):
        RayEngine(ray.url, "wrong").check()
    RayEngine(ray.url, ray.token).check()


def test_dead_raylet_is_lost_by_its_silence(ray: RayCluster, tmp_path: Path) -> None:
    launcher, spec = ray.launcher((FAKE, "wait"), QUICK), spec_in(tmp_path)
    launcher.open()
    handle = launcher.submit(spec)
    wait_until(lambda: "progressed" in kinds(spec))
    ray.kill_raylet()
    wait_until(lambda: has_ended(launcher, handle))
    launcher.close()

    report = JobFolder.of(spec.folder.root, 1).read_report()
    assert report is not None
    assert report.exit_code is None
    assert launcher.poll(handle) is not None
