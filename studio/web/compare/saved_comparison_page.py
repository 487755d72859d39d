"""Saved comparisons: open, save, edit, delete and export them."""

from typing import Annotated

from fastapi import APIRouter, Form, Request
from fastapi.responses import Response

from studio.services.compare import comparisons
from studio.web.compare import comparison_export
from studio.web.compare.comparison_url import parse_query
from studio.web.http.deps import DB
from studio.web.rendering.render import redirect

router = APIRouter(prefix="/comparisons", include_in_schema=False)

FormText = Annotated[str, Form()]


@router.get("/{number}")
def show(request: Request, number: int, db: DB) -> Response:
    saved = comparisons.get(db, number)
    return redirect(request, parse_query(saved.query).model_copy(update={"saved": number}).url)


@router.get("/{number}/export")
def export(number: int, db: DB) -> Response:
    return comparison_export.zip_response(db, comparisons.get(db, number))


@router.post("")
def save(
    request: Request, db: DB, name: FormText = "", text: FormText = "", query: FormText = ""
) -> Response:
    comparison = comparisons.save(db, name, text, query)
    return redirect(request, f"/comparisons/{comparison.id}")


@router.post("/{number}")
def change(
    request: Request,
    number: int,
    db: DB,
    name: FormText = "",
    text: FormText = "",
    query: FormText = "",
) -> Response:
    comparisons.update(db, number, name=name, text=text, query=query)
    return redirect(request, f"/comparisons/{number}")


@router.post("/{number}/delete")
def delete(request: Request, number: int, db: DB) -> Response:
    comparisons.delete(db, number)
    return redirect(request, "/compare")
