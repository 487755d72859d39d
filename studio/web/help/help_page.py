"""Help: what each setting does, the precisions, the failures, the shortcuts, and the tour."""

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from studio.errors import NotFoundError
from studio.recipe.field_reference import related_fields
from studio.web.help import help_index
from studio.web.rendering.navigation import SHORTCUTS
from studio.web.rendering.render import block, page

router = APIRouter(prefix="/help", include_in_schema=False)

Words = Annotated[str, Query(max_length=200)]


@router.get("")
def index(request: Request, q: Words = "") -> Response:
    return page(request, "help/index.html", q=q, found=help_index.pages(q), shortcuts=SHORTCUTS)


@router.get("/shortcuts")
def shortcuts(request: Request) -> Response:
    """Answer with what the dialog of shortcuts shows."""
    return block(request, "help/index.html", "shortcuts", shortcuts=SHORTCUTS)


@router.get("/tour")
def tour(request: Request) -> Response:
    return page(request, "help/tour.html")


@router.get("/knobs/{name}")
def knob(request: Request, name: str) -> Response:
    known = help_index.knobs()
    entry = known.get(name)
    if entry is None:
        raise NotFoundError(
            f"There is no setting {name[:200]}.", hint="Search the help for another name."
        )
    return page(
        request,
        "help/setting.html",
        entry=entry,
        chapter=help_index.title_of(entry),
        siblings=help_index.siblings(entry),
        related=related_fields(entry, known),
        examples=help_index.examples(entry),
    )
