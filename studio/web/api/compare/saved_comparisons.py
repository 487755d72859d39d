"""REST routes of saved comparisons."""

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, status
from fastapi.responses import Response
from pydantic import Field

from studio.services.compare import comparisons
from studio.web.api.conventions.api_route import ApiRoute
from studio.web.api.conventions.preconditions import EtagPrecondition, EtagResponse
from studio.web.api.conventions.schemas import After, Body, Id, Limit, Listing, Name, Out, make_page
from studio.web.compare import comparison_export
from studio.web.http.deps import DB

router = APIRouter(route_class=ApiRoute, prefix="/api/v1/comparisons", tags=["compare"])

NotesText = Annotated[str, Field(max_length=comparisons.MAX_TEXT)]
QueryText = Annotated[str, Field(min_length=1, max_length=comparisons.MAX_QUERY)]


class NewComparison(Body):
    name: Name
    text: NotesText = ""
    query: QueryText
    """The query string of the page, such as `runs=1,2&base=1&x=tokens`."""


class ChangedComparison(Body):
    name: Name | None = None
    text: NotesText | None = None
    query: QueryText | None = None


class SavedComparisonOut(Out):
    id: int
    name: str
    text: str
    query: str
    created_at: datetime
    changed_at: datetime


@router.post("", status_code=status.HTTP_201_CREATED)
def save(new: NewComparison, db: DB) -> SavedComparisonOut:
    return SavedComparisonOut.model_validate(comparisons.save(db, new.name, new.text, new.query))


@router.get("")
def newest(db: DB, after: After = None, limit: Limit = 50) -> Listing[SavedComparisonOut]:
    rows = comparisons.newest(db, limit=limit + 1, before=after)
    return make_page(rows, limit, [SavedComparisonOut.model_validate(row) for row in rows])


@router.get("/{number}")
def show(number: Id, db: DB, etag: EtagResponse) -> SavedComparisonOut:
    comparison = comparisons.get(db, number)
    etag.set_header(comparison.name, comparison.text, comparison.query)
    return SavedComparisonOut.model_validate(comparison)


@router.patch("/{number}")
def change(
    number: Id, changed: ChangedComparison, db: DB, etag: EtagPrecondition
) -> SavedComparisonOut:
    comparison = comparisons.get(db, number)
    etag.check(comparison.name, comparison.text, comparison.query)
    comparison = comparisons.update(db, number, **changed.model_dump(exclude_unset=True))
    etag.set_header(comparison.name, comparison.text, comparison.query)
    return SavedComparisonOut.model_validate(comparison)


@router.delete("/{number}", status_code=status.HTTP_204_NO_CONTENT)
def delete(number: Id, db: DB) -> None:
    comparisons.delete(db, number)


@router.get("/{number}/export", response_class=Response)
def export(number: Id, db: DB) -> Response:
    """Return the comparison as a zip of Markdown and its curves as images."""
    return comparison_export.zip_response(db, comparisons.get(db, number))
