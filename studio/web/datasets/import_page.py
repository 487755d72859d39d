"""Import a dataset from elsewhere: queue the task, then open the dataset it created."""

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from studio.errors import ConflictError, InvalidError, NotFoundError, UnavailableError
from studio.services.datasets import import_sources
from studio.services.tasks import tasks
from studio.web.datasets import dataset_page, import_form
from studio.web.http.deps import DB, Config, PostedForm
from studio.web.queue.task_page import TaskId
from studio.web.rendering.render import redirect, refused_form

router = APIRouter(prefix="/datasets/imports", include_in_schema=False)

_FORM_ERRORS = (ConflictError, InvalidError, NotFoundError, UnavailableError)


@router.post("")
def start_import(request: Request, posted: PostedForm, db: DB, config: Config) -> Response:
    """Queue an import and redirect to its progress."""
    name = str(posted.get("name", ""))
    try:
        task = import_sources.enqueue_import(db, config, import_form.parse_source(posted), name)
    except _FORM_ERRORS as error:
        context: dict[str, Any] = dataset_page.list_context(db, config, name=name, problem=error)
        kind = str(posted.get("kind", ""))
        form_context = context | {"bring": import_form.build_form(db, config, kind, values=posted)}
        return refused_form(request, "datasets/list.html", **form_context)
    return redirect(request, f"/chores/{task.id}?then=/datasets/imports/{task.id}/done")


@router.get("/{chore_id}/done")
def show_imported(request: Request, chore_id: TaskId, db: DB) -> Response:
    """Redirect to the dataset that an import task created."""
    dataset_id = tasks.get(db, chore_id).result.get("dataset_id")
    return redirect(request, f"/datasets/{dataset_id}" if dataset_id else "/datasets")
