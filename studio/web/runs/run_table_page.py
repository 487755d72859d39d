"""The home page: the live runs, the table of all runs, and the actions on its rows."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, get_args
from urllib.parse import parse_qsl, urlencode, urlsplit

from fastapi import APIRouter, Form, Query, Request
from fastapi.responses import Response
from pydantic import BaseModel, Field
from sqlmodel import Session

from studio.db.tables import Run
from studio.errors import ConflictError, InvalidError, NotFoundError, StudioError
from studio.services import recent_ends
from studio.services.compare import compare
from studio.services.estimates import run_progress
from studio.services.metrics import metric_summaries
from studio.services.runs import bulk_actions, runs, tags_notes
from studio.services.runs.bulk_actions import BulkAction
from studio.services.search import query_fields, query_filters, run_table
from studio.services.search.query_filters import QueryError
from studio.services.search.run_table import NEWEST_FIRST, TableRow, TableView
from studio.web.http.deps import DB, Config
from studio.web.i18n.locale import gettext
from studio.web.rendering.render import (
    attachment_response,
    block,
    page,
    redirect,
    referring_page,
    wants_fragment,
)
from studio.web.runs import run_table as shown
from studio.web.runs import seen_runs, table_export
from studio.web.runs.run_table import Row, TableQuery, table_url
from studio.web.study_conclusions import format_count

router = APIRouter(include_in_schema=False)


PAGE_SIZE = 50


@router.get("/runs")
@router.get("/")
def home(request: Request, db: DB, asked: Annotated[TableQuery, Query()]) -> Response:
    view = asked.to_view
    seen = seen_runs.read(request)
    live = runs.list_live(db, limit=shown.MAX_LIVE)
    query_error: InvalidError | None = None
    try:
        context = _table_context(db, view, asked)
    except QueryError as error:
        context, query_error = (
            _table_context(db, TableView(query="is:trashed -is:trashed"), TableQuery()),
            error,
        )
    except InvalidError as error:
        context, query_error = _table_context(db, replace(view, sort=NEWEST_FIRST), asked), error
    response = page(
        request,
        "runs/list.html",
        view=view,
        wrong=query_error,
        here=table_url(view, open=asked.open),
        address=table_url,
        chips=_query_chips(view),
        live=live,
        more_live=runs.count_unfinished(db).running - len(live),
        live_url=table_url(TableView(query=shown.LIVE_RUNS)),
        curves=metric_summaries.load_by_run(db, [run.id or 0 for run in live], ["loss"]),
        ended=recent_ends.list_recent(db, seen.since, seen.keys),
        cancelled=0 if view.query else run_table.count_runs(db, shown.CANCELLED),
        cancelled_url=table_url(replace(view, query=shown.CANCELLED)),
        progress_of=run_progress.measure,
        saved=run_table.list_views(db),
        vocabulary=query_fields.list_names(metric_summaries.list_keys(db)),
        **context,
    )
    # htmx calls a request with hx-select "full", too; only a boosted link shows the whole page.
    if query_error and "HX-Request" in request.headers and "HX-Boosted" not in request.headers:
        # Keep the rows on screen, and show only the error, beside the search box.
        response.headers.update({"HX-Reswap": "none", "HX-Push-Url": "false"})
    return response


def load_baseline(
    db: Session, view: TableView, columns: Sequence[query_fields.Field]
) -> TableRow | None:
    rows = run_table.load_rows(db, [view.base], columns) if view.base else []
    return rows[0] if rows else None


def _table_context(db: Session, shown_view: TableView, query: TableQuery) -> dict[str, Any]:
    view = replace(shown_view, query=shown.effective_query(shown_view.query))
    grouped = run_table.group_runs(db, view)
    if grouped:
        base = load_baseline(db, view, grouped.columns)
        opened = {
            term: _group_rows(db, replace(view, query=f"{view.query} {term}"), base)
            for term in query.open
        }
        return {
            "heads": shown.column_heads(shown_view, grouped.columns),
            "bunches": shown.group_rows(shown_view, grouped, query.open, opened),
            "grouped": shown.column_title(grouped.field),
            "rows": [],
            "base": None,
            "next": "",
            "total": grouped.total,
            "any_runs": grouped.total or _has_runs(db),
        }
    table_page = run_table.load_page(db, view, limit=PAGE_SIZE, after=query.after)
    base = load_baseline(db, view, table_page.columns)
    pinned = base and query.after is None
    return {
        "heads": shown.column_heads(shown_view, table_page.columns),
        "bunches": None,
        "grouped": "",
        "rows": [
            shown.table_row(line, table_page.columns, base)
            for line in table_page.lines
            if not base or line.run.id != base.run.id
        ],
        "base": shown.table_row(base, table_page.columns, base) if base and pinned else None,
        "next": table_url(shown_view, after=table_page.lines[-1].run.id)
        if table_page.has_more
        else "",
        "total": table_page.total,
        "any_runs": table_page.total or _has_runs(db),
    }


def _group_rows(db: Session, view: TableView, base: TableRow | None) -> list[Row]:
    table_page = run_table.load_page(db, view, limit=PAGE_SIZE)
    return [shown.table_row(line, table_page.columns, base) for line in table_page.lines]


def _has_runs(db: Session) -> bool:
    return bool(runs.newest(db, runs.RunFilter(archived=True), limit=1))


def _query_chips(view: TableView) -> list[tuple[str, str]]:
    """Return each term of the query, with the URL of the table without it."""
    return [
        (
            view.query[term.start : term.end],
            table_url(replace(view, query=query_filters.remove_term(view.query, term))),
        )
        for term in query_filters.parse_or_empty(view.query)
    ]


ACTION_LABELS: dict[str, str] = {
    "archive": "moved to the archive",
    "unarchive": "restored from the archive",
    "trash": "moved to the trash",
    "restore": "restored from the trash",
    "remove": "permanently deleted",
    "tag": "tagged",
    "untag": "no longer tagged",
}


class BulkRequest(BaseModel):
    """A bulk action and the runs it applies to."""

    act: str = ""
    tag: str = ""
    run: list[Annotated[str, Field(pattern=r"^\d{1,15}(,\d{1,15})*$")]] = []
    """Run ids, separated by commas: a form can have at most a thousand fields."""
    matching: int | None = None
    """Applies to all runs that match `q`; the number of matches that the user was shown."""
    q: Annotated[str, Field(max_length=1000)] = ""


class RowEdit(BaseModel):
    """The fields of a row that a user can edit."""

    name: str = ""
    tags: str = ""
    """Separated by commas."""
    notes: str = ""


FormText = Annotated[str, Form()]
TableParams = Annotated[TableQuery, Query()]


@router.get("/runs.{form}")
def export(request: Request, form: str, db: DB, asked: TableParams) -> Response:
    """Download the table as it is shown, with all its pages."""
    if form not in table_export.FORMATS:
        raise NotFoundError(f"There is no format named {form}.", hint="Use csv, json, md or tex.")
    writer, media_type = table_export.FORMATS[form]
    view = asked.to_view
    view = replace(view, query=shown.effective_query(view.query))
    content = writer(table_export.load_table(db, request.app.state.engine, view))
    return attachment_response(content, f"runs.{form}", media_type)


@router.post("/runs/bulk")
def apply_bulk_action(
    request: Request,
    db: DB,
    config: Config,
    asked: Annotated[BulkRequest, Form()],
) -> Response:
    """Apply an action to the selected runs, or to all that match, and offer to undo it."""
    chosen = _selected_runs(db, asked)
    if asked.act == "compare":
        run_ids = (str(item.id) for item in compare.load_runs(db, chosen))
        return redirect(request, "/compare?runs=" + ",".join(run_ids))
    if asked.act == "base":
        return redirect(request, _url_with_baseline(request, chosen[0]))
    action: BulkAction | None = next(
        (item for item in get_args(BulkAction) if item == asked.act), None
    )
    if action is None:
        raise InvalidError("Choose an action for the runs.", param="act")
    changed = bulk_actions.apply_action(db, action, chosen, asked.tag.strip(), config.runs)
    if not wants_fragment(request):
        return redirect(request, referring_page(request, "/"))
    return _toast(request, action, changed, asked.tag.strip())


@router.get("/runs/{run_id}/line")
def row_block(request: Request, run_id: int, db: DB, asked: TableParams) -> Response:
    """Redraw a run's row, with the columns named in the URL."""
    return _row_response(request, db, runs.get(db, run_id), asked)


@router.get("/runs/{run_id}/words")
def edit_row(request: Request, run_id: int, db: DB, asked: TableParams) -> Response:
    run = runs.get(db, run_id)
    edit = RowEdit(name=run.name, tags=", ".join(run.tags), notes=run.notes)
    return _editor(request, run, asked, (edit, tags_notes.known_tags(db), None))


@router.post("/runs/{run_id}/words")
def save_row(
    request: Request, run_id: int, db: DB, asked: TableParams, written: Annotated[RowEdit, Form()]
) -> Response:
    """Save an edited row; on an error keep the editor open and show the reason."""
    try:
        run = tags_notes.update(
            db, run_id, name=written.name, notes=written.notes, tags=written.tags.split(",")
        )
    except InvalidError as error:
        if not wants_fragment(request):
            raise
        state = (written, tags_notes.known_tags(db), error)
        return _editor(request, runs.get(db, run_id), asked, state)
    if not wants_fragment(request):
        return redirect(request, f"/runs/{run_id}")
    return _row_response(request, db, run, asked)


@router.post("/views")
def save_view(request: Request, db: DB, name: FormText = "", query: FormText = "") -> Response:
    view = run_table.save_view(db, name, query)
    return redirect(request, f"/?{view.query}")


@router.post("/views/{view_id}/delete")
def delete_view(request: Request, view_id: int, db: DB) -> Response:
    run_table.delete_view(db, view_id)
    return redirect(request, referring_page(request, "/"))


def _selected_runs(db: Session, bulk: BulkRequest) -> list[int]:
    """Return the ids of the runs to change, each once."""
    if bulk.matching is None:
        numbers = [int(number) for ids_text in bulk.run for number in ids_text.split(",")]
        if not numbers:
            raise InvalidError("No runs selected.", hint="Select runs in the table first.")
        return list(dict.fromkeys(numbers))
    matches = run_table.find_run_ids(db, shown.effective_query(bulk.q))
    if len(matches) != bulk.matching:
        message = f"{format_count(len(matches), 'run')} match the query now, not {bulk.matching:,}."
        raise ConflictError(message, hint="Check the table again before you change them all.")
    if len(matches) > bulk_actions.MAX_RUNS:
        message = f"You can change at most {bulk_actions.MAX_RUNS:,} runs at once."
        raise InvalidError(message, hint="Narrow your search.", param="matching")
    return matches


def _row_response(request: Request, db: DB, run: Run, query: TableQuery) -> Response:
    view = query.to_view
    columns = run_table.resolve_columns(view, metric_summaries.list_keys(db))
    line = run_table.load_rows(db, [run.id or 0], columns)[0]
    return block(
        request,
        "runs/table_row.html",
        "row",
        row=shown.table_row(line, columns, load_baseline(db, view, columns)),
        line_of=_table_query(query),
        progress_of=run_progress.measure,
    )


def _editor(
    request: Request,
    run: Run,
    query: TableQuery,
    state: tuple[RowEdit, list[str], StudioError | None],
) -> Response:
    edit, known_tags, error = state
    return block(
        request,
        "runs/table_row.html",
        "editor",
        status=422 if error else 200,
        run=run,
        written=edit,
        known=known_tags,
        error=error,
        span=len(query.to_view.columns) + 2,
        line_of=_table_query(query),
    )


def _table_query(query: TableQuery) -> str:
    """Return the query string for a row's URL, so that the row has the table's columns."""
    return table_url(query.to_view, "").removeprefix("?")


def _toast(request: Request, action: BulkAction, changed: list[int], tag: str) -> Response:
    message = gettext("%(runs)s %(done)s.") % {
        "runs": format_count(len(changed), "run"),
        "done": gettext(ACTION_LABELS[action]),
    }
    text = message if changed else "Nothing to change."
    undo = bulk_actions.UNDO.get(action, "") if changed else ""
    response = block(
        request, "runs/table_row.html", "toast", words=text, undo=undo, changed=changed, tag=tag
    )
    response.headers["HX-Trigger"] = "table-changed"
    return response


def _url_with_baseline(request: Request, run_id: int) -> str:
    """Return the URL of the table the request came from, with a run as its baseline."""
    referring_query = urlsplit(request.headers.get("referer", "")).query
    params = [pair for pair in parse_qsl(referring_query) if pair[0] not in {"base", "after"}]
    return "/?" + urlencode([*params, ("base", run_id)], safe=",:<>=./#")
