"""REST routes of the run table: fields, bulk actions and saved views."""

from datetime import datetime
from typing import Annotated, Literal

from fastapi import APIRouter
from pydantic import Field

from studio.services.metrics import metric_summaries
from studio.services.runs import bulk_actions
from studio.services.search import query_fields, run_table
from studio.web.api.conventions.api_route import ApiRoute
from studio.web.api.conventions.schemas import Body, BodyId, Id, Listing, Name, Out
from studio.web.http.deps import DB, Config

router = APIRouter(route_class=ApiRoute, prefix="/api/v1", tags=["runs"])


class FieldOut(Out):
    name: str
    title: str
    """Empty for metrics."""
    kind: str


class Bulk(Body):
    """An action on many runs: applied to all or to none."""

    runs: Annotated[list[BodyId], Field(min_length=1, max_length=bulk_actions.MAX_RUNS)]
    act: Literal["archive", "unarchive", "trash", "restore", "remove", "tag", "untag"]
    tag: str = ""


class BulkOut(Out):
    changed: list[int]
    """The runs that were changed; the others already were in this state."""


class NewView(Body):
    name: Name
    query: Annotated[str, Field(max_length=run_table.QUERY_LIMIT)]
    """The query string of the page, without the question mark."""


class ViewOut(Out):
    id: int
    name: str
    query: str
    created_at: datetime


@router.get("/fields")
def listing(db: DB) -> Listing[FieldOut]:
    """List the fields by which runs can be searched, sorted and displayed."""
    metric_keys = metric_summaries.list_keys(db)
    fields = [
        field
        for name in query_fields.list_names(metric_keys)
        if (field := query_fields.find(name, metric_keys))
    ]
    return Listing.complete([FieldOut.model_validate(field) for field in fields])


@router.post("/bulk")
def act(asked: Bulk, db: DB, config: Config) -> BulkOut:
    return BulkOut(
        changed=bulk_actions.apply_action(db, asked.act, asked.runs, asked.tag, config.runs)
    )


@router.get("/views")
def saved(db: DB) -> Listing[ViewOut]:
    views = [ViewOut.model_validate(view) for view in run_table.list_views(db)]
    return Listing.complete(views)


@router.post("/views", status_code=201)
def save(new: NewView, db: DB) -> ViewOut:
    """Save a view, replacing one of the same name."""
    return ViewOut.model_validate(run_table.save_view(db, new.name, new.query))


@router.delete("/views/{view_id}", status_code=204)
def delete(view_id: Id, db: DB) -> None:
    run_table.delete_view(db, view_id)
