"""REST routes of health, hardware, and metrics for Prometheus."""

from typing import Any, Literal

from fastapi import APIRouter, Request
from fastapi.responses import PlainTextResponse

import studio
from studio.errors import UnavailableError
from studio.hardware import package_versions
from studio.recipe.precision import PRECISIONS
from studio.services.operations import prometheus_metrics
from studio.services.workers import worker_process, workers
from studio.web.api.conventions.api_route import ApiRoute
from studio.web.api.conventions.schemas import Out
from studio.web.http.deps import DB, Config

router = APIRouter(route_class=ApiRoute, prefix="/api/v1", tags=["system"])


class Health(Out):
    status: Literal["ok", "degraded"]
    """Degraded: it works, except for what the reasons list."""
    reasons: list[str]
    """What the worker cannot do at present, in sentences; empty if healthy."""
    version: str


class GpuOut(Out):
    index: int
    name: str
    memory_bytes: int
    capability: tuple[int, int]


class HardwareOut(Out):
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
    """Why each precision cannot be used on this machine; empty if it can."""


@router.get("/health")
def health(db: DB) -> Health:
    """Return the health of the studio; 503 with the reason if no worker is running."""
    if not workers.list_alive(db):
        if death := worker_process.last_exit(db):
            hint = f"The studio is starting another; attempt {death.deaths}."
            raise UnavailableError(death.reason, hint=hint)
        raise UnavailableError("No worker is running.", hint="Start a worker: studio worker")
    reasons = workers.list_failures(db)
    status = "degraded" if reasons else "ok"
    return Health(status=status, reasons=reasons, version=studio.__version__)


@router.get("/hardware")
def hardware(db: DB) -> HardwareOut:
    """Describe the machine that trains: the worker's, or this one if no worker is connected."""
    machine: Any = workers.training_hardware(db)
    fields = HardwareOut.model_fields.keys() - {"packages", "precisions"}
    facts = {name: getattr(machine, name) for name in fields}
    refusals = {mode.name: mode.unsupported_reason(machine) for mode in PRECISIONS.values()}
    return HardwareOut.model_validate(
        facts | {"packages": package_versions(), "precisions": refusals}
    )


metrics_router = APIRouter(include_in_schema=False)


@metrics_router.get("/metrics")
def metrics(request: Request, db: DB, config: Config) -> PlainTextResponse:
    from studio.web.api.system import prometheus_text  # noqa: PLC0415 -- heavy import

    text = prometheus_text.render_text(
        prometheus_metrics.collect(db), request.app.state.traffic, config.database
    )
    return PlainTextResponse(text, media_type=prometheus_text.CONTENT_TYPE)
