"""Help pages: settings, precisions, failures, keyboard shortcuts, the tour and the API."""

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from studio.errors import NotFoundError
from studio.failure_codes import FAILURE_CODES
from studio.recipe.field_reference import related_fields
from studio.web.help import api_reference, help_index
from studio.web.rendering.navigation import SHORTCUTS
from studio.web.rendering.render import block, page

router = APIRouter(include_in_schema=False)

SearchText = Annotated[str, Query(max_length=200)]


@router.get("/help")
def index(request: Request, q: SearchText = "") -> Response:
    return page(
        request, "help/index.html", q=q, found=help_index.search_help(q), shortcuts=SHORTCUTS
    )


@router.get("/help/shortcuts")
def shortcuts(request: Request) -> Response:
    """Return the content of the shortcuts dialog."""
    return block(request, "help/index.html", "shortcuts", shortcuts=SHORTCUTS)


@router.get("/help/tour")
def tour(request: Request) -> Response:
    return page(request, "help/tour.html")


@router.get("/help/knobs/{name}")
def recipe_field(request: Request, name: str) -> Response:
    entries = help_index.recipe_fields()
    entry = entries.get(name)
    if entry is None:
        raise NotFoundError(
            f"There is no setting {name[:200]}.", hint="Search the help for a similar name."
        )
    return page(
        request,
        "help/setting.html",
        entry=entry,
        chapter=help_index.section_title(entry),
        siblings=help_index.section_fields(entry),
        related=related_fields(entry, entries),
        examples=help_index.usage_examples(entry),
    )


@router.get("/failures")
def failures(request: Request) -> Response:
    """Explain the error codes of failed runs."""
    return page(request, "help/failures.html", kinds=FAILURE_CODES.values())


@router.get("/docs")
def api_docs(request: Request) -> Response:
    """Show every endpoint and schema of the OpenAPI document on one page."""
    reference = api_reference.parse_document(request.app.openapi())
    address = str(request.base_url).rstrip("/")
    return page(request, "help/api.html", reference=reference, address=address)
