"""Completions for the search box of the run table."""

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from studio.services.search import completions
from studio.web.http.deps import DB
from studio.web.rendering.render import page

router = APIRouter(include_in_schema=False)


@router.get("/completions")
def show(
    request: Request,
    db: DB,
    q: Annotated[str, Query(max_length=1000)] = "",
    at: Annotated[int, Query(ge=0, le=1000)] = 1000,
) -> Response:
    return page(request, "search/completions.html", found=completions.complete(db, q, at))
