"""The banner that says how the worker is, for pages that are open to ask for again."""

from fastapi import APIRouter, Request
from fastapi.responses import Response

from studio.web.rendering.render import block

router = APIRouter(prefix="/worker", include_in_schema=False)


@router.get("")
def show(request: Request) -> Response:
    return block(request, "base.html", "worker")
