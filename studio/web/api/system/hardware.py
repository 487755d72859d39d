"""REST routes of hardware: what a machine has, and how busy it is."""

from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Path

from studio.hardware import package_versions
from studio.hardware_usage.usage import HardwareUsage
from studio.recipe.precision import PRECISIONS
from studio.services.hardware import gpu_health, usage_history, usage_problems
from studio.services.hardware.usage_history import MachineHistory
from studio.services.runs import runs
from studio.services.workers import workers
from studio.web.api import conventions as api
from studio.web.http.deps import DB

router = APIRouter(route_class=api.ApiRoute, prefix="/api/v1", tags=["system"])


class GpuOut(api.Out):
    index: int
    name: str
    memory_bytes: int
    capability: tuple[int, int]
    uuid: str
    """What the driver calls it, whatever its index is; empty where it is unknown."""
    fault: str
    """Why no run gets it; empty if it works."""


class HardwareOut(api.Out):
    title: str
    device: str
    processor: str
    cores: int
    memory_bytes: int
    native_bf16: bool
    product_times: dict[str, float]
    """By number format: the time of a matrix product relative to float32. Empty until measured,
    once, soon after the first start."""
    gpus: list[GpuOut]
    packages: dict[str, str]
    precisions: dict[str, str]
    """Why each precision cannot be used on this machine's best GPUs; empty if it can."""


class UsagePointOut(api.Out):
    at: datetime
    usage: HardwareUsage


class MachineUsageOut(api.Out):
    """The load of one machine, sampled every five seconds by its worker."""

    host: str
    newest: UsagePointOut
    problems: list[str]
    """What slows training down at present, in sentences; empty if nothing does."""
    history: list[UsagePointOut]
    """The samples of the last hour, oldest first."""


@router.get("/hardware")
def hardware(db: DB) -> HardwareOut:
    """Describe the machine that trains: the worker's, or this one if no worker is connected."""
    machine: Any = workers.whole_hardware(db)
    fields = HardwareOut.model_fields.keys() - {"packages", "precisions"}
    facts = {name: getattr(machine, name) for name in fields}
    faults = machine.gpu_faults
    facts["gpus"] = [asdict(gpu) | {"fault": faults.get(gpu.index, "")} for gpu in machine.gpus]
    best = machine.kinds[0]
    refusals = {mode.name: mode.unsupported_reason(best) for mode in PRECISIONS.values()}
    return HardwareOut.model_validate(
        facts | {"packages": package_versions(), "precisions": refusals}
    )


@router.post("/hardware/gpus/{gpu}/release")
def release(gpu: Annotated[str, Path(max_length=100)], db: DB) -> HardwareOut:
    """Let runs have a GPU again that is in quarantine, by its UUID.

    The worker uses it within seconds; until then, its fault is still given.
    """
    gpu_health.release(db, gpu)
    return hardware(db)


@router.get("/hardware/usage")
def usage(db: DB) -> api.Listing[MachineUsageOut]:
    """Return how busy each machine with a worker is, and was in the last hour."""
    machines = usage_history.list_machines(db)
    return api.Listing[MachineUsageOut].complete([_machine_out(machine) for machine in machines])


@router.get("/runs/{run_id}/hardware")
def run_usage(run_id: api.Id, db: DB) -> api.Listing[UsagePointOut]:
    """Return how busy a run's machine was while it trained, oldest first: 500 samples at most."""
    runs.get(db, run_id)
    points = usage_history.list_run_points(db, run_id)
    return api.Listing[UsagePointOut].complete(map(_point_out, points))


def _machine_out(machine: MachineHistory) -> MachineUsageOut:
    points = list(map(_point_out, machine.points))
    return MachineUsageOut(
        host=machine.host,
        newest=points[-1],
        problems=usage_problems.list_problems([point.usage for point in points]),
        history=points,
    )


def _point_out(point: usage_history.Point) -> UsagePointOut:
    return UsagePointOut(at=point.at, usage=point.usage)
