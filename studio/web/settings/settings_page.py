"""What this machine can do, and where the studio keeps its things."""

from typing import Annotated, Any

from fastapi import APIRouter, Form, Request
from fastapi.responses import Response

import studio
from studio.db.outbox import Channel, DeliveryStatus
from studio.hardware import Gpu, Hardware, package_versions
from studio.services.notifications import channels, deliveries
from studio.services.operations import health_checks
from studio.services.workers import launcher_status, workers
from studio.settings import Settings
from studio.web.forms import choices
from studio.web.http.deps import DB, Keyed
from studio.web.i18n import formatting
from studio.web.i18n.locale import gettext
from studio.web.rendering.render import asked_by_htmx, block, go, page

router = APIRouter(prefix="/settings", include_in_schema=False)

LAST = 10
"""How many messages are shown."""


@router.get("")
def show(request: Request, db: DB, config: Keyed) -> Response:
    return page(
        request,
        "settings/show.html",
        machine=[
            *_machine(workers.training_hardware(db)),
            ("Quick start", launcher_status.read(config).told),
        ],
        packages=package_versions(),
        precisions=choices.precisions(workers.training_hardware(db)),
        places=_places(config),
        checks=list(health_checks.check_home(config)),
        **_notices(db, config),
    )


@router.get("/notices")
def notices(request: Request, db: DB, config: Keyed) -> Response:
    return block(request, "settings/show.html", "notices", **_notices(db, config))


@router.post("/notices/test")
def send_test(
    request: Request, db: DB, config: Keyed, channel: Annotated[Channel, Form()]
) -> Response:
    channels.send_test(db, config, channel)
    if asked_by_htmx(request):
        return block(request, "settings/show.html", "notices", **_notices(db, config))
    return go(request, "/settings#notices")


def _notices(db: DB, config: Settings) -> dict[str, Any]:
    """Gather by which ways people are told, and the last messages with what came of them."""
    last = deliveries.newest(db, limit=LAST)
    has_worker = bool(workers.list_alive(db))
    waiting = (one for one in last if one.status == DeliveryStatus.WAITING)
    return {
        "ways": channels.list_channels(config),
        "links": config.public_url,
        "last": last,
        "tries": deliveries.list_attempts(db, last),
        "is_waiting": has_worker and any(one.event == deliveries.TEST for one in waiting),
        "has_worker": has_worker,
    }


def _machine(hardware: Hardware) -> list[tuple[str, str]]:
    return [
        ("Runs train on", "GPU" if hardware.device == "cuda" else "the processor"),
        *((f"GPU {gpu.index}", _gpu(gpu)) for gpu in hardware.gpus),
        ("Processor", hardware.processor),
        ("Cores", str(hardware.cores)),
        ("Memory", formatting.size(hardware.memory_bytes)),
        ("Multiplies bfloat16 itself", "yes" if hardware.native_bf16 else "no"),
        *(
            (f"Products in {name}", f"{times:.2g} times as long as in float32")
            for name, times in hardware.product_times.items()
            if name != "float32"
        ),
    ]


def _gpu(gpu: Gpu) -> str:
    major, minor = gpu.capability
    return f"{gpu.name}, {formatting.size(gpu.memory_bytes)}, compute capability {major}.{minor}"


def _hub(config: Settings) -> str:
    told = (
        gettext("%(address)s, a token is set")
        if config.hub_token
        else gettext("%(address)s, no token")
    )
    return told % {"address": config.hub_endpoint}


def _places(config: Settings) -> list[tuple[str, str]]:
    return [
        ("Studio", studio.__version__),
        ("Database", str(config.database)),
        ("Runs", str(config.runs)),
        ("Data sets", str(config.datasets)),
        ("Models", str(config.models)),
        ("Hub", _hub(config)),
        ("Largest upload", formatting.size(config.upload_limit_bytes)),
    ]
