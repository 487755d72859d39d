"""Choose the launcher by the settings. What is not chosen is not imported."""

import shlex
from typing import TYPE_CHECKING

from studio.settings import Settings
from studio.worker.launchers.protocol import Launcher
from studio.worker.processes import cgroups
from studio.worker.processes.launcher import LocalLauncher
from studio.worker.processes.prefork_client import PreforkClient

if TYPE_CHECKING:
    from studio.worker.launchers.jobs.engine import Engine


def choose(settings: Settings) -> Launcher:
    """Return the launcher that the operator has chosen.

    Raises:
        StudioError: it cannot be used; the message and the hint say what to change.

    """
    if settings.launcher == "local":
        return LocalLauncher(
            wanted_slots=settings.slots,
            cgroups=cgroups.find_parent(),
            prefork=PreforkClient(settings),
            memory_limit=settings.run_memory_bytes,
        )
    from studio.worker.launchers.jobs import launcher as jobs  # noqa: PLC0415 -- optional dependency

    engine = _slurm(settings) if settings.launcher == "slurm" else _ray(settings)
    engine.check()
    home_id = jobs.home_id(settings.home / "cluster_id")
    made = jobs.JobLauncher(engine, home_id, wanted_slots=settings.slots)
    made.python = settings.job_python or made.python
    return made


def _slurm(settings: Settings) -> "Engine":
    from studio.worker.launchers.slurm.engine import SlurmEngine  # noqa: PLC0415 -- optional dependency

    return SlurmEngine(shlex.split(settings.slurm_options), settings.job_gpus)


def _ray(settings: Settings) -> "Engine":
    from studio.worker.launchers.ray import engine as ray  # noqa: PLC0415 -- optional dependency

    # Ray kills after 3 seconds what it has asked to stop, unless a job says otherwise.
    grace = {"RAY_JOB_STOP_WAIT_TIME_S": str(int(settings.save_grace_seconds))}
    return ray.RayEngine(
        settings.ray_address,
        settings.secret_value("ray_token"),
        settings.job_gpus,
        ray.parse_options(settings.ray_options),
        settings.environment | grace,
    )
