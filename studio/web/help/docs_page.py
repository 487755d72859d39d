"""The API reference: every endpoint and schema of the OpenAPI document on one page."""

from fastapi import APIRouter, Request
from fastapi.responses import Response

from studio.web.help import api_reference
from studio.web.rendering.render import page

router = APIRouter(include_in_schema=False)


@router.get("/docs")
def index(request: Request) -> Response:
    reference = api_reference.parse_document(request.app.openapi())
    address = str(request.base_url).rstrip("/")
    return page(request, "help/api.html", reference=reference, address=address)
