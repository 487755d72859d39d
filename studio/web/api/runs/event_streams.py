"""Server-sent events: metrics, log and status of one run, and the status of all runs.

Both also send the time of the newest hardware sample, for pages to fetch what they show of it.

The id of each message is `<metric id>.<log offset>.<event id>`: the position reached in each
source.
"""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Query, Request
from fastapi.sse import EventSourceResponse, ServerSentEvent
from pydantic import TypeAdapter
from sqlalchemy import Engine
from sqlmodel import Session

from studio.db.session import read_session
from studio.protocols.run_dir import RunDir
from studio.services.compare import compare
from studio.services.hardware import usage_history
from studio.services.metrics import metrics
from studio.services.runs import artifacts, run_events, runs
from studio.settings import Settings
from studio.web.api.conventions import (
    TRANSIENT_FIELDS,
    ApiRoute,
    Id,
    RunBrief,
    run_brief,
    run_briefs,
)
from studio.web.http.event_hub import StreamSlot

router = APIRouter(route_class=ApiRoute, prefix="/api/v1", tags=["live"])

LOG_LINES = 500
RECENT_RUNS = 50
"""The number of runs on a page of the list. Live runs are included however old they are."""

HEARTBEAT = ServerSentEvent(event="hb", raw_data="{}")
_METRIC_ROWS = TypeAdapter(list[metrics.MetricRow])
_EVENTS = TypeAdapter(list[run_events.AnyEvent])


@dataclass(frozen=True, slots=True)
class StreamPosition:
    """How far a viewer has read; None for the log means only its last lines."""

    metric: int = 0
    log: int | None = None
    event: int = 0

    def __str__(self) -> str:
        return f"{self.metric}.{'' if self.log is None else self.log}.{self.event}"


@dataclass(frozen=True, slots=True)
class StreamState:
    """What has been sent to one open page so far."""

    run_id: int
    position: StreamPosition
    status: str = ""
    answers: int = 0
    sampled_at: str = ""
    is_finished: bool = False


def _existing_run(request: Request, run_id: Id) -> int:
    """Return 404 before the stream starts: afterwards the status cannot be set."""
    with read_session(request.app.state.engine) as db:
        runs.get(db, run_id)
    return run_id


@router.get("/runs/{run_id}/stream", response_class=EventSourceResponse, dependencies=[StreamSlot])
async def of_run(
    request: Request,
    run_id: Annotated[int, Depends(_existing_run)],
    after: Annotated[str, Query(max_length=50)] = "",
    last_event_id: Annotated[str, Header(max_length=50)] = "",
) -> AsyncIterator[ServerSentEvent]:
    state = request.app.state
    viewer = StreamState(run_id, parse_position(last_event_id or after))
    while not state.hub.is_closing:
        version = state.hub.version
        read = partial(read_news, state.engine, state.settings, viewer)
        viewer, events = await state.hub.read_shared(viewer, read)
        for event in events:
            yield event
        if viewer.is_finished:
            yield ServerSentEvent(event="end", data={}, id=str(viewer.position))
            return
        # If there was something new there may be more already; if not, wait for the next commit.
        if not events and await state.hub.wait(version) == version:
            yield HEARTBEAT


@router.get("/stream", response_class=EventSourceResponse, dependencies=[StreamSlot])
async def of_all(request: Request) -> AsyncIterator[ServerSentEvent]:
    """Stream the recent runs that have changed since the last message; at first, all of them."""
    state, feed = request.app.state, request.app.state.hub.slow
    sent_keys: dict[int, str] = {}
    followed: frozenset[int] = frozenset()
    sampled_at = ""
    while not feed.is_closing:
        version = feed.version
        read = partial(read_recent_runs, state.engine, followed)
        recent = await feed.read_shared(("recent", followed), read)
        followed = frozenset(run.id for run in recent if run.is_live)
        changed = [run.brief for run in recent if sent_keys.get(run.id) != run.key]
        sent_keys = {run.id: run.key for run in recent}
        if changed:
            yield ServerSentEvent(event="runs", raw_data=f"[{','.join(changed)}]")
        newest = await feed.read_shared("hardware", partial(read_time_of_sample, state.engine))
        if newest != sampled_at:
            sampled_at = newest
            yield ServerSentEvent(event="hardware", raw_data=newest or "null")
        if await feed.wait(version) == version:
            yield HEARTBEAT


def parse_position(text: str) -> StreamPosition:
    metric, log, event = (*text.split("."), "", "", "")[:3]
    return StreamPosition(
        metric=int(metric) if metric.isdecimal() else 0,
        log=int(log) if log.isdecimal() else None,
        event=int(event) if event.isdecimal() else 0,
    )


@dataclass(frozen=True, slots=True)
class RecentRun:
    """A run of the list; made once for all viewers."""

    id: int
    is_live: bool
    key: str
    brief: str
    """As JSON."""


def read_recent_runs(engine: Engine, followed: frozenset[int]) -> list[RecentRun]:
    """Read the newest runs, live runs, and runs that were live: their outcome must be sent."""
    with read_session(engine) as db:
        newest = runs.newest(db, runs.RunFilter(), limit=RECENT_RUNS)
        newest_ids = {run.id for run in newest}
        older = [run for run in runs.list_with_live(db, followed) if run.id not in newest_ids]
        briefs = run_briefs(db, [*newest, *older])
    return [
        RecentRun(brief.id, brief.status.is_live, _news_key(brief), brief.model_dump_json())
        for brief in briefs
    ]


def read_time_of_sample(engine: Engine) -> str:
    with read_session(engine) as db:
        return _time_of_sample(db)


def _time_of_sample(db: Session) -> str:
    """Return the time of the newest hardware sample as JSON; empty if there is none."""
    newest = usage_history.newest_time(db)
    return json.dumps(newest.isoformat()) if newest else ""


def _news_key(brief: RunBrief) -> str:
    """Return the fields whose change must be sent."""
    return brief.model_dump_json(exclude=TRANSIENT_FIELDS)


def read_news(
    engine: Engine, settings: Settings, viewer: StreamState
) -> tuple[StreamState, list[ServerSentEvent]]:
    """Read what is new for a viewer; return its next state and the events to send."""
    with read_session(engine) as db:
        run = runs.get(db, viewer.run_id)
        brief = run_brief(db, run)
        sampled_at = _time_of_sample(db)
        answers = len(compare.list_samples(db, [viewer.run_id]))
        rows = metrics.load_rows_after(db, viewer.run_id, viewer.position.metric)
        event_rows = runs.list_events(db, viewer.run_id, after=viewer.position.event)
    log = RunDir(settings.runs / str(viewer.run_id)).log
    part = artifacts.read_log(log, viewer.position.log, LOG_LINES)
    # The connection may break between any two events, so an id covers only what precedes it.
    after_metrics = replace(viewer.position, metric=rows[-1].last_id) if rows else viewer.position
    after_log = replace(after_metrics, log=part.next_offset)
    after_events = replace(after_log, event=event_rows[-1].id or 0) if event_rows else after_log
    events = [
        ("metrics", after_metrics, _METRIC_ROWS.dump_json(rows).decode() if rows else ""),
        ("log", after_log, json.dumps({"lines": part.lines}) if part.lines else ""),
        (
            "event",
            after_events,
            _EVENTS.dump_json([*map(run_events.to_event, event_rows)]).decode()
            if event_rows
            else "",
        ),
        ("sample", after_events, f"{answers}" if answers != viewer.answers else ""),
        ("hardware", after_events, sampled_at if sampled_at != viewer.sampled_at else ""),
        (
            "status",
            after_events,
            brief.model_dump_json() if _news_key(brief) != viewer.status else "",
        ),
    ]
    return (
        StreamState(
            run_id=viewer.run_id,
            position=after_events,
            status=_news_key(brief),
            answers=answers,
            sampled_at=sampled_at,
            is_finished=run.status.is_final and not (rows or part.lines or event_rows),
        ),
        [
            ServerSentEvent(event=name, raw_data=data, id=str(position))
            for name, position, data in events
            if data
        ],
    )
