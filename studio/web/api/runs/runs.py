"""REST routes of runs and of their table: submit, list, show, change, pause, retry, delete."""

from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field

from studio.db.states import RunStatus
from studio.db.tables import Run
from studio.db.tasks import LoadedModel
from studio.methods import AnyRecipe
from studio.services import experiments
from studio.services.metrics import metric_summaries
from studio.services.models import loaded_model
from studio.services.queue import overview, queue
from studio.services.runs import attempts, bulk_actions, run_commands, run_events, runs, tags_notes
from studio.services.runs.run_events import AnyEvent
from studio.services.search import query_fields, query_filters, run_table
from studio.services.search.run_table import TableView
from studio.services.workers import workers
from studio.web.api import conventions as api
from studio.web.api.runs import run_results
from studio.web.http.deps import DB, Config

router = APIRouter(route_class=api.ApiRoute, prefix="/api/v1/runs", tags=["runs"])


queue_router = APIRouter(route_class=api.ApiRoute, prefix="/api/v1/queue", tags=["queue"])


class WaitingRunOut(api.RunBrief):
    reason: str
    """Why it is waiting."""
    waiting_since: datetime
    starts_in_seconds: float | None
    """Estimated from training runs and from earlier runs of its experiment."""


class LoadedOut(api.Out):
    """The model that is loaded for inference."""

    model: str
    """The name in the latest request; empty before the first request."""
    computed_in: str
    """The number format of its latest answer, as measured; empty before the first answer."""
    since: datetime
    leaves_in_seconds: float | None
    """Seconds until it is unloaded if idle; null while it answers or is being unloaded."""
    is_leaving: bool
    """Whether it is unloaded as soon as the current answer is complete."""
    slots: int


class QueueOut(api.Out):
    slots: int
    """How many runs can train at once, over all known workers."""
    used: int
    """Slots used by training runs, by tasks and exports, and by a loaded model."""
    live: list[api.RunBrief]
    loaded: LoadedOut | None
    """The model loaded for inference. It is unloaded when a run waits for its slot."""
    waiting: list[WaitingRunOut]
    """In starting order."""


def _wait_out(wait: overview.RunWait, brief: api.RunBrief) -> WaitingRunOut:
    return WaitingRunOut(
        **brief.model_dump(),
        reason=wait.reason,
        waiting_since=wait.since,
        starts_in_seconds=wait.seconds,
    )


@queue_router.get("", name="show")
def show_queue(db: DB) -> QueueOut:
    live, loaded = runs.list_live_progress(db), loaded_model.current(db)
    waits = overview.estimate_waits(db)
    return QueueOut(
        slots=workers.count_slots(db),
        used=overview.count_all_used_slots(db),
        live=api.run_briefs(db, live),
        loaded=None if loaded is None else _loaded_out(loaded),
        waiting=[*map(_wait_out, waits, api.run_briefs(db, [wait.run for wait in waits]))],
    )


@queue_router.delete("/loaded")
def stop(db: DB) -> LoadedOut:
    """Unload the model loaded for inference, once the current answer is complete."""
    return _loaded_out(loaded_model.request_unload(db))


def _loaded_out(row: LoadedModel) -> LoadedOut:
    remaining = loaded_model.time_left(row)
    return LoadedOut(
        model=row.model,
        computed_in=row.computed_in,
        since=row.since,
        leaves_in_seconds=None if remaining is None else remaining.total_seconds(),
        is_leaving=row.is_leaving,
        slots=loaded_model.SLOTS_USED,
    )


FilterText = Annotated[str, Field(max_length=200)]

_FILTERS = ("status", "experiment", "tag", "model", "dataset", "method", "precision")


class RunQuery(BaseModel):
    """The runs to list, and their order."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    q: Annotated[str, Field(max_length=1000)] = ""
    """A query as in the search box: `status:failed eval_loss<0.5 -tag:draft`."""
    sort: Annotated[str, Field(max_length=200)] = run_table.NEWEST_FIRST
    """A field name, such as `eval_loss.best`; prefix it with a minus for descending order."""
    after: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    """The last run of the previous page: its `next_after`."""
    limit: Annotated[int, Field(ge=1, le=500)] = 50
    status: RunStatus | None = None
    experiment: Annotated[int, Field(ge=1, lt=2**63)] | None = None
    tag: FilterText = ""
    model: FilterText = ""
    dataset: FilterText = ""
    method: FilterText = ""
    precision: FilterText = ""
    search: FilterText = ""
    """Words in the name or notes."""

    @property
    def query(self) -> str:
        """The filters combined into one query."""
        filters = {name: str(getattr(self, name) or "") for name in _FILTERS}
        parts = [f"{name}:{query_filters.quote(value)}" for name, value in filters.items() if value]
        words = [query_filters.quote(self.search)] if self.search else []
        return " ".join(filter(None, (self.q, *parts, *words)))


class NewRun(api.Body):
    name: api.Name
    recipe: AnyRecipe
    notes: api.Notes = ""
    parent: api.Source = ""
    """The run or experiment that the recipe was copied from."""


class ChangedRun(api.Body):
    """Changes to a run; `priority`, `place` and `is_held` only while it is queued."""

    name: api.Name | None = None
    priority: Annotated[int, Field(ge=-100, le=100)] | None = None
    """Higher starts first."""
    place: Annotated[int, Field(ge=1)] | None = None
    """Its position among the queued runs of its priority, starting at one."""
    is_held: bool | None = None
    """Whether it stays on hold until you release it."""
    notes: Annotated[str, Field(max_length=tags_notes.NOTES_LIMIT)] | None = None
    tags: Annotated[list[api.Name], Field(max_length=tags_notes.MAX_TAGS)] | None = None
    is_archived: bool | None = None
    """Whether lists hide it."""
    is_trashed: bool | None = None
    """Whether it is in the trash. It is permanently deleted some weeks later."""


class NewPlace(api.Body):
    place: Annotated[int, Field(ge=1, lt=2**53)]
    """Its new position among the queued runs of its priority, starting at one."""


class ChangedRecipe(api.Body):
    overrides: dict[str, Any] = Field(default_factory=dict)
    """Values that override the recipe, nested like it, such as the `change` of a fix."""


class Retry(api.Body):
    place: Literal["checkpoint", "start"] = Field(default="checkpoint", alias="from")
    """From `start`, the run's metrics and answers so far are deleted; its history is kept."""


class AttemptOut(api.Out):
    number: int
    worker: str
    from_step: int
    began_at: datetime
    ended_at: datetime | None
    outcome: str
    """The run's status afterwards, `lost` if its process vanished, or empty."""
    exit_code: int | None


class RunEventsOut(api.Listing[AnyEvent]):
    """The events of a run, oldest first."""


@router.post("", status_code=201)
def submit(new: NewRun, db: DB) -> api.RunOut:
    """Create an experiment with the recipe, and queue its first run."""
    details = {"notes": new.notes, "parent": new.parent}
    experiment = experiments.create(db, new.name, new.recipe, **details)
    return api.run_out(db, runs.submit(db, experiment))


@router.get("")
def newest(db: DB, query: Annotated[RunQuery, Query()]) -> api.Listing[api.RunOut]:
    """List the runs that match a query; archived and trashed runs only if it asks for them."""
    view = TableView(query=query.query, sort=query.sort)
    rows = run_table.find_runs(db, view, limit=query.limit + 1, after=query.after)
    return api.make_page(rows, query.limit, [api.run_out(db, row) for row in rows])


@router.get("/{run_id}")
def show(run_id: api.Id, db: DB, config: Config, etag: api.EtagResponse) -> api.RunDetailOut:
    """Return a run; if it has failed, with possible fixes."""
    run = runs.get(db, run_id)
    etag.set_header(*_editable_facts(run))
    return api.failed_run_out(db, run, run_results.run_folder(db, config, run_id))


@router.patch("/{run_id}")
def change(run_id: api.Id, changed: ChangedRun, db: DB, etag: api.EtagPrecondition) -> api.RunOut:
    etag.check(*_editable_facts(runs.get(db, run_id)))
    tags_notes.update(db, run_id, **changed.model_dump(include={"name", "notes", "tags"}))
    if changed.priority is not None:
        queue.set_priority(db, run_id, changed.priority)
    if changed.place is not None:
        queue.move(db, run_id, changed.place)
    if changed.is_held is not None:
        queue.hold(db, run_id, is_held=changed.is_held)
    if changed.is_archived is not None:
        (bulk_actions.archive if changed.is_archived else bulk_actions.unarchive)(db, [run_id])
    if changed.is_trashed is not None:
        (bulk_actions.move_to_trash if changed.is_trashed else bulk_actions.restore)(db, [run_id])
    run = runs.get(db, run_id)
    etag.set_header(*_editable_facts(run))
    return api.run_out(db, run)


@router.delete("/{run_id}", status_code=204)
def delete(run_id: api.Id, db: DB, config: Config) -> None:
    """Permanently delete a run with its metrics and files, in the trash or not."""
    runs.delete(db, run_id, config.runs)


@router.post("/{run_id}/again", status_code=201)
def again(run_id: api.Id, changed: ChangedRecipe, db: DB) -> api.RunOut:
    """Queue a new run with the recipe of this one, with some values changed."""
    return api.run_out(db, runs.resubmit(db, run_id, changed.overrides, strict=None))


@router.post("/{run_id}/cancel")
def cancel(run_id: api.Id, db: DB) -> api.RunOut:
    return api.run_out(db, run_commands.cancel(db, run_id))


@router.post("/{run_id}/keep")
def keep(run_id: api.Id, db: DB) -> api.RunOut:
    """Stop the run, and keep the model trained so far as its result."""
    return api.run_out(db, run_commands.stop_and_keep(db, run_id))


@router.post("/{run_id}/pause")
def pause(run_id: api.Id, db: DB) -> api.RunOut:
    """Pause the run: it writes a checkpoint and releases its slot."""
    return api.run_out(db, run_commands.pause(db, run_id))


@router.post("/{run_id}/resume")
def resume(run_id: api.Id, db: DB) -> api.RunOut:
    """Queue a paused run to resume from its checkpoint."""
    return api.run_out(db, run_commands.resume(db, run_id))


@router.post("/{run_id}/retry")
def retry(run_id: api.Id, db: DB, how: Retry | None = None) -> api.RunOut:
    """Queue a failed or cancelled run to resume from its newest checkpoint, or to restart."""
    command = run_commands.restart if how and how.place == "start" else run_commands.retry
    return api.run_out(db, command(db, run_id))


@router.post("/{run_id}/move")
def move(run_id: api.Id, moved: NewPlace, db: DB) -> api.RunOut:
    """Move a queued run to another position in the queue."""
    return api.run_out(db, queue.move(db, run_id, moved.place))


@router.get("/{run_id}/attempts")
def tries(run_id: api.Id, db: DB) -> api.Listing[AttemptOut]:
    """List the attempts of the run, oldest first."""
    runs.get(db, run_id)
    return api.Listing[AttemptOut].complete(attempts.list_attempts(db, run_id))


@router.get("/{run_id}/events")
def events(run_id: api.Id, db: DB, after: api.After = 0, limit: api.Limit = 200) -> RunEventsOut:
    """List the events of the run, oldest first. Ignore kinds that you do not know."""
    runs.get(db, run_id)
    rows = runs.list_events(db, run_id, after=after or 0, limit=limit + 1)
    page = api.make_page(rows, limit, [run_events.to_event(row) for row in rows])
    return RunEventsOut(data=page.data, has_more=page.has_more, next_after=page.next_after)


def _editable_facts(run: Run) -> tuple[Any, ...]:
    """Return the editable fields of a run; its training progress is not one of them."""
    times = (run.archived_at, run.deleted_at)
    return (run.name, run.notes, run.tags, run.priority, run.is_held, *times)


table_router = APIRouter(route_class=api.ApiRoute, prefix="/api/v1", tags=["runs"])


class FieldOut(api.Out):
    name: str
    title: str
    """Empty for metrics."""
    kind: str


class Bulk(api.Body):
    """An action on many runs: applied to all or to none."""

    runs: Annotated[list[api.BodyId], Field(min_length=1, max_length=bulk_actions.MAX_RUNS)]
    act: Literal["archive", "unarchive", "trash", "restore", "remove", "tag", "untag"]
    tag: str = ""


class BulkOut(api.Out):
    changed: list[int]
    """The runs that were changed; the others already were in this state."""


class NewView(api.Body):
    name: api.Name
    query: Annotated[str, Field(max_length=run_table.QUERY_LIMIT)]
    """The query string of the page, without the question mark."""


class ViewOut(api.Out):
    id: int
    name: str
    query: str
    created_at: datetime


@table_router.get("/fields", name="listing")
def list_fields(db: DB) -> api.Listing[FieldOut]:
    """List the fields by which runs can be searched, sorted and displayed."""
    metric_keys = metric_summaries.list_keys(db)
    fields = (query_fields.find(name, metric_keys) for name in query_fields.list_names(metric_keys))
    return api.Listing[FieldOut].complete(filter(None, fields))


@table_router.post("/bulk")
def act(body: Bulk, db: DB, config: Config) -> BulkOut:
    return BulkOut(
        changed=bulk_actions.apply_action(db, body.act, body.runs, body.tag, config.runs)
    )


@table_router.get("/views")
def saved(db: DB) -> api.Listing[ViewOut]:
    return api.Listing[ViewOut].complete(run_table.list_views(db))


@table_router.post("/views", status_code=201)
def save(new: NewView, db: DB) -> ViewOut:
    """Save a view, replacing one of the same name."""
    return ViewOut.model_validate(run_table.save_view(db, new.name, new.query))


@table_router.delete("/views/{view_id}", status_code=204, name="delete")
def delete_view(view_id: api.Id, db: DB) -> None:
    run_table.delete_view(db, view_id)
