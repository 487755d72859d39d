"""The page that explains the error codes of failed runs."""

from fastapi import APIRouter, Request
from fastapi.responses import Response

from studio.failure_codes import FAILURE_CODES
from studio.web.rendering.render import page

router = APIRouter(prefix="/failures", include_in_schema=False)


@router.get("")
def index(request: Request) -> Response:
    return page(request, "help/failures.html", kinds=FAILURE_CODES.values())
