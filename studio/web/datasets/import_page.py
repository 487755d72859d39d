"""Data from elsewhere: asked for on the data sets page, followed until it is a data set."""

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from studio.errors import ConflictError, InvalidError, NotFoundError, UnavailableError
from studio.services.datasets import import_sources
from studio.services.tasks import tasks
from studio.web.datasets import dataset_page, import_form
from studio.web.http.deps import DB, Config, Posted
from studio.web.queue.task_page import ChoreId
from studio.web.rendering.render import form_again, go

router = APIRouter(prefix="/datasets/imports", include_in_schema=False)

_REFUSED = (ConflictError, InvalidError, NotFoundError, UnavailableError)


@router.post("")
def bring(request: Request, posted: Posted, db: DB, config: Config) -> Response:
    """Have a file fetched, and show how far it is."""
    name = str(posted.get("name", ""))
    try:
        chore = import_sources.enqueue_import(db, config, import_form.read(posted), name)
    except _REFUSED as error:
        again: dict[str, Any] = dataset_page.listed(db, config, name=name, problem=error)
        way = str(posted.get("kind", ""))
        shown = again | {"bring": import_form.of(db, config, way, values=posted)}
        return form_again(request, "datasets/list.html", **shown)
    return go(request, f"/chores/{chore.id}?then=/datasets/imports/{chore.id}/done")


@router.get("/{chore_id}/done")
def done(request: Request, chore_id: ChoreId, db: DB) -> Response:
    """Go to the data set that a chore has brought."""
    dataset_id = tasks.get(db, chore_id).result.get("dataset_id")
    return go(request, f"/datasets/{dataset_id}" if dataset_id else "/datasets")
