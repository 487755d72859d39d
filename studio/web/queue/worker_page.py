"""The banner with the worker's status, which open pages refresh."""

from fastapi import APIRouter, Request
from fastapi.responses import Response

from studio.web.rendering.render import block

router = APIRouter(prefix="/worker", include_in_schema=False)


@router.get("")
def show(request: Request) -> Response:
    return block(request, "base.html", "worker")
