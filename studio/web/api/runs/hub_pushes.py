"""REST routes that upload exports to the Hugging Face hub."""

from datetime import datetime

from fastapi import APIRouter
from pydantic import Field

from studio.db.states import TaskStatus
from studio.services.exports import exports, hub_pushes
from studio.services.exports.hub_pushes import HubPush
from studio.services.queue import overview
from studio.web.api import conventions as api
from studio.web.api.system.system import TaskErrorOut
from studio.web.http.deps import DB, Config

router = APIRouter(
    route_class=api.ApiRoute,
    prefix="/api/v1/runs/{run_id}/exports/{export_id}/pushes",
    tags=["exports"],
)


class NewPush(api.Body):
    repo: str = Field(max_length=200)
    """Where to: `owner/name`. It is created if there is none."""
    private: bool = True
    """Whether only you and your organisation can see a repository that is created."""


class PushOut(api.Out):
    """The upload of an export to the Hugging Face hub."""

    task_id: int
    """The task that does it: cancel it, or try it again, under `/tasks`."""
    repo: str
    private: bool
    status: TaskStatus
    phase: str
    progress: float
    revision: str
    """The commit on the hub; empty until it has succeeded."""
    url: str
    """Where to see that commit; empty until it has succeeded."""
    error: TaskErrorOut | None
    waiting: api.WaitingOut | None
    created_at: datetime
    finished_at: datetime | None


@router.post("", status_code=201)
def push(run_id: api.Id, export_id: api.Id, new: NewPush, db: DB, config: Config) -> PushOut:
    """Upload a finished export. What has arrived before is not sent again."""
    made = hub_pushes.create(
        db, config, run_id, export_id, new.repo.strip(), is_private=new.private
    )
    return _push_out(db, made)


@router.get("")
def newest(run_id: api.Id, export_id: api.Id, db: DB) -> api.Listing[PushOut]:
    export = exports.get(db, run_id, export_id)
    found = hub_pushes.list_for_export(db, export)
    return api.Listing.complete(_push_out(db, one) for one in found)


def _push_out(db: DB, push: HubPush) -> PushOut:
    task = push.task
    error = {"code": task.error_code, "message": task.error_message, "hint": task.error_hint}
    fields = task.model_dump() | {
        "task_id": task.id,
        "repo": push.repo,
        "private": push.is_private,
        "progress": task.share,
        "revision": push.revision,
        "url": push.url,
        "error": error if task.error_code else None,
        "waiting": api.waiting_out(overview.explain_work_wait(db, task)),
    }
    return PushOut.model_validate(fields)
