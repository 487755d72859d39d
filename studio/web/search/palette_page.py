"""The command palette. Without scripts it is a separate page."""

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from studio.web.http.deps import DB
from studio.web.rendering.render import page, wants_fragment
from studio.web.search.command_palette import find_items

router = APIRouter(prefix="/palette", include_in_schema=False)


@router.get("")
def show(request: Request, db: DB, q: Annotated[str, Query(max_length=200)] = "") -> Response:
    template = "search/palette_items.html" if wants_fragment(request) else "search/palette.html"
    return page(request, template, q=q, groups=find_items(db, q))
