"""REST routes that compare runs, as JSON and as an event stream, and of saved comparisons."""

from collections.abc import AsyncIterator
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query, Request
from fastapi.responses import HTMLResponse, Response
from fastapi.sse import EventSourceResponse, ServerSentEvent
from pydantic import Field, TypeAdapter
from sqlalchemy import Engine
from starlette.concurrency import run_in_threadpool

from studio.db.session import read_session
from studio.methods import MAIN_METRICS
from studio.services.compare import compare, comparisons
from studio.services.metrics import metrics
from studio.web.api import conventions as api
from studio.web.api.runs.event_streams import HEARTBEAT
from studio.web.api.runs.run_results import AxisName, CurveWindowParams, SeriesOut
from studio.web.compare import comparison_export
from studio.web.compare.comparison_url import ComparisonQuery
from studio.web.compare.curve_styles import CurveAxis, CurveSet, load_curves
from studio.web.http.deps import DB, RunIds
from studio.web.http.event_hub import StreamSlot
from studio.web.reports import report_file
from studio.web.reports.comparison_report import render_comparison_report

router = APIRouter(route_class=api.ApiRoute, prefix="/api/v1/compare", tags=["compare"])


MetricKeys = Annotated[str, Query(max_length=1000)]
DEFAULT_KEYS = ",".join(MAIN_METRICS)
GroupKey = Annotated[str, Query(pattern=r"^[\w./-]{0,100}$")]
"""`seed` groups runs that differ only in their seed; otherwise a key of the recipe."""

_METRIC_ROWS = TypeAdapter(dict[int, list[metrics.MetricRow]])
_BRIEFS = TypeAdapter(list[api.RunBrief])


class RepeatsOut(api.Out):
    """A metric over runs that differ only in their seed."""

    mean: float
    spread: float
    """Standard deviation."""
    n: int


class ReadingOut(api.Out):
    """The compared values, if they are not the final value of each run."""

    value: float
    baseline: float
    step: int | None
    """The last step that both runs have reached; null if each is at its end."""
    steps: int
    """The maximum number of steps each value is averaged over."""


class CellOut(api.Out):
    value: float | None
    delta: float | None
    verdict: str
    """better or worse; empty if the metric has no direction or seed noise explains the delta."""
    noise: str
    """beyond or within the seed noise; seed if only the seed differs; unknown."""
    repeats: RepeatsOut | None
    reading: ReadingOut | None


class ComparisonOut(api.Out):
    runs: list[int]
    base: int
    differing: dict[str, list[Any]]
    """Recipe keys whose values differ, with the value in each run."""
    metrics: dict[str, list[CellOut]]
    x: list[float]
    curves: dict[str, dict[int, SeriesOut]]
    """By metric, then by run, on the shared x axis."""


class CurveStyleOut(api.Out):
    """The label and style of a line."""

    id: int
    """The id of the run; for a group, of its first run."""
    label: str
    hue: int
    dash: int
    n: int
    """The number of runs it averages."""


class CurveSetOut(api.Out):
    """Metrics of several runs on one axis; null where a line has no value."""

    x: list[float]
    lines: list[CurveStyleOut]
    curves: dict[str, dict[int, SeriesOut]]
    """By metric, then by line. For a group, min and max are taken over its runs."""
    last_id: int
    """Pass it to the stream as `after` to continue from here."""
    offsets: dict[int, float]
    """By run: the offset added to its steps or seconds to place it on the axis."""


@router.get("")
def show(
    db: DB,
    runs: RunIds,
    base: Annotated[int | None, Query(ge=1, lt=2**63)] = None,
    keys: MetricKeys = DEFAULT_KEYS,
    x: AxisName = "step",
) -> ComparisonOut:
    comparison = compare.compare(db, runs, base)
    curve_set = load_curves(db, comparison.runs, keys.split(","), CurveAxis(x=x))
    return ComparisonOut.model_validate(
        {
            "runs": [run.id or 0 for run in comparison.runs],
            "base": comparison.base.id,
            "differing": {key: comparison.settings[key] for key in comparison.differing},
            "metrics": comparison.metrics,
            "x": curve_set.curves.x,
            "curves": _series_by_metric(curve_set),
        }
    )


@router.get("/report", response_class=HTMLResponse)
def report(
    db: DB, runs: RunIds, base: Annotated[int | None, Query(ge=1, lt=2**63)] = None
) -> Response:
    """Download a report of a comparison to share: one HTML file without links."""
    made = compare.compare(db, runs, base)
    query = ComparisonQuery(runs=[run.id or 0 for run in made.runs], base=made.base.id)
    html = render_comparison_report(db, query, "", "", is_file=True)
    return report_file.respond(html, report_file.comparison_report_name(query.runs), download=True)


@router.get("/curves")
def curves(
    db: DB,
    runs: RunIds,
    keys: MetricKeys = DEFAULT_KEYS,
    x: AxisName = "step",
    group: GroupKey = "",
    *,
    cut: CurveWindowParams,
) -> CurveSetOut:
    """Return curves only, in buckets shared by all runs, for all or part of the axis."""
    axis = CurveAxis(x=x, group=group, part=cut.x_range)
    curve_set = load_curves(db, compare.load_runs(db, runs), keys.split(","), axis, cut.buckets)
    return CurveSetOut.model_validate(
        {
            "x": curve_set.curves.x,
            "lines": list(curve_set.styles.values()),
            "curves": _series_by_metric(curve_set),
            "last_id": curve_set.curves.last_id,
            "offsets": curve_set.curves.offsets,
        }
    )


def _existing_runs(request: Request, runs: RunIds) -> list[int]:
    """Reject the request before the stream starts: afterwards the status cannot be set."""
    with read_session(request.app.state.engine) as db:
        return [run.id or 0 for run in compare.load_runs(db, runs)]


@router.get("/stream", response_class=EventSourceResponse, dependencies=[StreamSlot])
async def stream(
    request: Request,
    runs: Annotated[list[int], Depends(_existing_runs)],
    after: Annotated[str, Query(max_length=20)] = "",
    last_event_id: Annotated[str, Header(max_length=20)] = "",
) -> AsyncIterator[ServerSentEvent]:
    """Stream new metrics and the status of runs, after a metric id, until all have finished."""
    state = request.app.state
    started = last_event_id or after
    last, briefs = int(started) if started.isdecimal() else 0, ""
    while not state.hub.is_closing:
        version = state.hub.version
        rows, latest_briefs, is_over = await run_in_threadpool(_read_news, state.engine, runs, last)
        last = max(
            (row.last_id for metric_rows in rows.values() for row in metric_rows), default=last
        )
        if rows:
            data = _METRIC_ROWS.dump_json(rows).decode()
            yield ServerSentEvent(event="metrics", raw_data=data, id=str(last))
        if latest_briefs != briefs:
            yield ServerSentEvent(event="runs", raw_data=latest_briefs)
        briefs = latest_briefs
        if is_over and not rows:
            yield ServerSentEvent(event="end", data={}, id=str(last))
            return
        if not rows and await state.hub.wait(version) == version:
            yield HEARTBEAT


def _read_news(
    engine: Engine, ids: list[int], last: int
) -> tuple[dict[int, list[metrics.MetricRow]], str, bool]:
    with read_session(engine) as db:
        runs = compare.load_runs(db, ids)
        shown = api.run_briefs(db, runs)
        briefs = _BRIEFS.dump_json(shown, exclude={"__all__": api.TRANSIENT_FIELDS})
        is_over = all(run.status.is_final for run in runs)
        return metrics.load_rows_by_run(db, ids, last), briefs.decode(), is_over


def _series_by_metric(curve_set: CurveSet) -> dict[str, dict[int, SeriesOut]]:
    return {
        key: {
            line_id: SeriesOut.model_validate(series, from_attributes=True)
            for line_id, series in lines.items()
        }
        for key, lines in curve_set.series.items()
        if lines
    }


saved_router = APIRouter(route_class=api.ApiRoute, prefix="/api/v1/comparisons", tags=["compare"])

NotesText = Annotated[str, Field(max_length=comparisons.MAX_TEXT)]
QueryText = Annotated[str, Field(min_length=1, max_length=comparisons.MAX_QUERY)]


class NewComparison(api.Body):
    name: api.Name
    text: NotesText = ""
    query: QueryText
    """The query string of the page, such as `runs=1,2&base=1&x=tokens`."""


class ChangedComparison(api.Body):
    name: api.Name | None = None
    text: NotesText | None = None
    query: QueryText | None = None


class SavedComparisonOut(api.Out):
    id: int
    name: str
    text: str
    query: str
    created_at: datetime
    changed_at: datetime


@saved_router.post("", status_code=201)
def save(new: NewComparison, db: DB) -> SavedComparisonOut:
    return SavedComparisonOut.model_validate(comparisons.save(db, new.name, new.text, new.query))


@saved_router.get("")
def newest(
    db: DB, after: api.After = None, limit: api.Limit = 50
) -> api.Listing[SavedComparisonOut]:
    rows = comparisons.newest(db, limit=limit + 1, before=after)
    return api.make_page(rows, limit, [SavedComparisonOut.model_validate(row) for row in rows])


@saved_router.get("/{number}", name="show")
def show_saved(number: api.Id, db: DB, etag: api.EtagResponse) -> SavedComparisonOut:
    comparison = comparisons.get(db, number)
    etag.set_header(comparison.name, comparison.text, comparison.query)
    return SavedComparisonOut.model_validate(comparison)


@saved_router.patch("/{number}")
def change(
    number: api.Id, changed: ChangedComparison, db: DB, etag: api.EtagPrecondition
) -> SavedComparisonOut:
    comparison = comparisons.get(db, number)
    etag.check(comparison.name, comparison.text, comparison.query)
    comparison = comparisons.update(db, number, **changed.model_dump(exclude_unset=True))
    etag.set_header(comparison.name, comparison.text, comparison.query)
    return SavedComparisonOut.model_validate(comparison)


@saved_router.delete("/{number}", status_code=204)
def delete(number: api.Id, db: DB) -> None:
    comparisons.delete(db, number)


@saved_router.get("/{number}/export", response_class=Response)
def export(number: api.Id, db: DB) -> Response:
    """Return the comparison as a zip of Markdown and its curves as images."""
    return comparison_export.zip_response(db, comparisons.get(db, number))
