"""Help pages: settings, precisions, failures, keyboard shortcuts and the tour."""

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from studio.errors import NotFoundError
from studio.recipe.field_reference import related_fields
from studio.web.help import help_index
from studio.web.rendering.navigation import SHORTCUTS
from studio.web.rendering.render import block, page

router = APIRouter(prefix="/help", include_in_schema=False)

SearchText = Annotated[str, Query(max_length=200)]


@router.get("")
def index(request: Request, q: SearchText = "") -> Response:
    return page(
        request, "help/index.html", q=q, found=help_index.search_help(q), shortcuts=SHORTCUTS
    )


@router.get("/shortcuts")
def shortcuts(request: Request) -> Response:
    """Return the content of the shortcuts dialog."""
    return block(request, "help/index.html", "shortcuts", shortcuts=SHORTCUTS)


@router.get("/tour")
def tour(request: Request) -> Response:
    return page(request, "help/tour.html")


@router.get("/knobs/{name}")
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
