"""What this machine can do, and where the studio keeps its things."""

from fastapi import APIRouter, Request
from fastapi.responses import Response

import studio
from studio.hardware import Gpu, Hardware, detect, versions
from studio.services import checks, launcher
from studio.settings import Settings
from studio.web import choices, words
from studio.web.deps import Config
from studio.web.render import page

router = APIRouter(prefix="/settings", include_in_schema=False)


@router.get("")
def show(request: Request, config: Config) -> Response:
    return page(
        request,
        "settings/show.html",
        machine=[*_machine(detect()), ("Quick start", launcher.read(config).told)],
        packages=versions(),
        precisions=choices.precisions(detect()),
        places=_places(config),
        checks=list(checks.of_home(config)),
    )


def _machine(hardware: Hardware) -> list[tuple[str, str]]:
    return [
        ("Runs train on", "GPU" if hardware.device == "cuda" else "the processor"),
        *((f"GPU {gpu.index}", _gpu(gpu)) for gpu in hardware.gpus),
        ("Processor", hardware.processor),
        ("Cores", str(hardware.cores)),
        ("Memory", words.size(hardware.memory_bytes)),
        ("Multiplies bfloat16 itself", "yes" if hardware.native_bf16 else "no"),
    ]


def _gpu(gpu: Gpu) -> str:
    major, minor = gpu.capability
    return f"{gpu.name}, {words.size(gpu.memory_bytes)}, compute capability {major}.{minor}"


def _places(config: Settings) -> list[tuple[str, str]]:
    return [
        ("Studio", studio.__version__),
        ("Database", str(config.database)),
        ("Runs", str(config.runs)),
        ("Data sets", str(config.datasets)),
        ("Models", str(config.models)),
        ("Largest upload", words.size(config.upload_limit_bytes)),
    ]
