"""The home page: the live runs, and the table of all runs."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from sqlmodel import Session

from studio.errors import InvalidError
from studio.services.estimates import run_progress
from studio.services.metrics import metric_summaries
from studio.services.runs import runs
from studio.services.search import query_fields, query_filters, run_table
from studio.services.search.query_filters import QueryError
from studio.services.search.run_table import NEWEST_FIRST, TableRow, TableView
from studio.web.http.deps import DB
from studio.web.rendering.render import page
from studio.web.runs import run_table as shown
from studio.web.runs.run_table import Row, TableQuery, table_url

router = APIRouter(include_in_schema=False)

PAGE_SIZE = 50


@router.get("/runs")
@router.get("/")
def home(request: Request, db: DB, asked: Annotated[TableQuery, Query()]) -> Response:
    view = asked.to_view
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
        live=runs.list_live(db),
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


def _table_context(db: Session, view: TableView, query: TableQuery) -> dict[str, Any]:
    grouped = run_table.group_runs(db, view)
    if grouped:
        base = load_baseline(db, view, grouped.columns)
        opened = {
            term: _group_rows(db, replace(view, query=f"{view.query} {term}"), base)
            for term in query.open
        }
        return {
            "heads": shown.column_heads(view, grouped.columns),
            "bunches": shown.group_rows(view, grouped, query.open, opened),
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
        "heads": shown.column_heads(view, table_page.columns),
        "bunches": None,
        "grouped": "",
        "rows": [
            shown.table_row(line, table_page.columns, base)
            for line in table_page.lines
            if not base or line.run.id != base.run.id
        ],
        "base": shown.table_row(base, table_page.columns, base) if base and pinned else None,
        "next": table_url(view, after=table_page.lines[-1].run.id) if table_page.has_more else "",
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
