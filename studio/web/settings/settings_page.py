"""The settings page: hardware, storage, checks and notifications; the choice of language."""

from collections.abc import Collection
from typing import Annotated, Any

from fastapi import APIRouter, Form, Path, Request
from fastapi.responses import RedirectResponse, Response
from sqlmodel import Session

import studio
from studio.db.outbox import Channel, DeliveryStatus
from studio.db.session import describe_database
from studio.errors import InvalidError, StudioError
from studio.gpu_detection import Gpu
from studio.graders.python_process import PythonPolicy, SealStatus, seal_status
from studio.hardware import Hardware, package_versions
from studio.services.accounts import secrets
from studio.services.hardware import gpu_health
from studio.services.notifications import deliveries
from studio.services.operations import health_checks
from studio.services.workers import workers
from studio.settings import Settings
from studio.web.auth.identity import CurrentIdentity
from studio.web.forms import choices
from studio.web.http.deps import DB, Config, ConfigWithSecrets
from studio.web.http.errors import status_for
from studio.web.i18n import formatting
from studio.web.i18n.locale import LANGUAGE_COOKIE, LANGUAGES, gettext
from studio.web.rendering.render import block, page, redirect, referring_page, wants_fragment

router = APIRouter(include_in_schema=False)

RECENT_MESSAGES = 10
"""The number of messages to show."""


@router.get("/settings")
def show(request: Request, db: DB, config: ConfigWithSecrets) -> Response:
    hardware, quarantined = workers.whole_hardware(db), gpu_health.list_quarantined(db)
    return page(
        request,
        "settings/show.html",
        machine=[
            *_machine_facts(hardware, quarantined),
            ("Prefork server", workers.read_launcher(config).summary),
            ("Python graders", _describe_graders(config.python_graders, seal_status())),
        ],
        quarantined={
            name: next((f"GPU {gpu.index}" for gpu in hardware.gpus if gpu.cuda_name == name), name)
            for name in quarantined
        },
        packages=package_versions(),
        precisions=choices.precision_options(workers.training_hardware(db)),
        places=_storage_facts(config),
        checks=list(health_checks.check_home(config)),
        **_notification_context(db, config),
    )


@router.post("/settings/gpus/{gpu}/release")
def release_gpu(request: Request, gpu: Annotated[str, Path(max_length=100)], db: DB) -> Response:
    gpu_health.release(db, gpu)
    return redirect(request, "/settings")


@router.get("/settings/notices")
def notifications(request: Request, db: DB, config: ConfigWithSecrets) -> Response:
    return block(request, "settings/show.html", "notices", **_notification_context(db, config))


@router.post("/settings/notices/test")
def send_test(
    request: Request, db: DB, config: ConfigWithSecrets, channel: Annotated[Channel, Form()]
) -> Response:
    deliveries.send_test(db, config, channel)
    if wants_fragment(request):
        return block(request, "settings/show.html", "notices", **_notification_context(db, config))
    return redirect(request, "/settings#notices")


def _notification_context(db: DB, config: Settings) -> dict[str, Any]:
    """Collect the notification channels, and the last messages with their delivery attempts."""
    recent = deliveries.newest(db, limit=RECENT_MESSAGES)
    has_worker = bool(workers.list_alive(db))
    waiting = (delivery for delivery in recent if delivery.status == DeliveryStatus.WAITING)
    return {
        "ways": deliveries.list_channels(config),
        "links": config.public_url,
        "last": recent,
        "tries": deliveries.list_attempts(db, recent),
        "is_waiting": has_worker and any(delivery.event == deliveries.TEST for delivery in waiting),
        "has_worker": has_worker,
    }


def _machine_facts(hardware: Hardware, quarantined: Collection[str]) -> list[tuple[str, str]]:
    faults = dict(hardware.gpu_faults)
    for gpu in hardware.gpus:
        if faults.get(gpu.index) == gpu_health.REASON and gpu.cuda_name not in quarantined:
            faults[gpu.index] = "released, runs get it in a few seconds"
    return [
        ("Training device", "GPU" if hardware.device == "cuda" else "CPU"),
        *((f"GPU {gpu.index}", _format_gpu(gpu)) for gpu in hardware.gpus),
        *((f"GPU {index}, not used", fault) for index, fault in faults.items()),
        ("Processor", hardware.processor),
        ("Cores", str(hardware.cores)),
        ("Memory", formatting.size(hardware.memory_bytes)),
        ("Native bfloat16", "yes" if hardware.native_bf16 else "no"),
        *(
            (f"Matrix products in {name}", f"{times:.2g} times as long as in float32")
            for name, times in hardware.product_times.items()
            if name != "float32"
        ),
    ]


def _describe_graders(policy: PythonPolicy, status: SealStatus) -> str:
    """Say whether programs of graders run on this machine."""
    if policy == "off":
        return "turned off"
    if not status.reason:
        walls = ", ".join(status.walls)
        return f"run sealed by {walls}"
    if policy == "trusted":
        return f"run, but are not sealed: {status.reason}"
    return f"refused, because they cannot be sealed: {status.reason}"


def _format_gpu(gpu: Gpu) -> str:
    major, minor = gpu.capability
    return f"{gpu.name}, {formatting.size(gpu.memory_bytes)}, compute capability {major}.{minor}"


def _format_hub(config: Settings) -> str:
    template = (
        gettext("%(address)s, a token is set")
        if config.hub_token
        else gettext("%(address)s, no token")
    )
    return template % {"address": config.hub_endpoint}


def _storage_facts(config: Settings) -> list[tuple[str, str]]:
    return [
        ("Studio", studio.__version__),
        ("Database", describe_database(config)),
        ("Runs", str(config.runs)),
        ("Datasets", str(config.datasets)),
        ("Models", str(config.models)),
        ("Hub", _format_hub(config)),
        ("Largest upload", formatting.size(config.upload_limit_bytes)),
    ]


_COOKIE_SECONDS = 365 * 24 * 60 * 60


@router.post("/language")
def choose_language(request: Request, language: Annotated[str, Form()]) -> Response:
    if language not in LANGUAGES:
        raise InvalidError(
            "This language is not available.",
            hint=f"Choose one of {', '.join(LANGUAGES)}.",
        )
    response = RedirectResponse(referring_page(request, "/"), status_code=303)
    response.set_cookie(
        LANGUAGE_COOKIE, language, max_age=_COOKIE_SECONDS, httponly=True, samesite="lax"
    )
    return response


@router.get("/settings/secrets")
def show_secrets(request: Request, db: DB, config: Config) -> Response:
    return _secrets_page(request, db, config)


@router.post("/settings/secrets/{name}")
def set_secret(
    request: Request,
    name: str,
    db: DB,
    config: Config,
    who: CurrentIdentity,
    value: Annotated[str, Form(max_length=secrets.MAX_LENGTH + 100)] = "",
) -> Response:
    try:
        secrets.store(db, config, name, value, who.name)
    except StudioError as error:
        return _secrets_page(request, db, config, name, error)
    return redirect(request, f"/settings/secrets#{name}")


@router.post("/settings/secrets/{name}/forget")
def delete_secret(request: Request, name: str, db: DB) -> Response:
    secrets.delete(db, name)
    return redirect(request, f"/settings/secrets#{name}")


def _secrets_page(
    request: Request,
    db: Session,
    config: Settings,
    refused_name: str = "",
    problem: StudioError | None = None,
) -> Response:
    status = status_for(problem) if problem else 200
    states = secrets.list_secrets(db, config)
    context = {
        "known": states,
        "refused": refused_name,
        "problem": problem,
        "longest": secrets.MAX_LENGTH,
    }
    return page(request, "settings/secrets.html", status=status, **context)
