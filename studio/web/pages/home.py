"""The first page: what runs now, and every run there was."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from sqlmodel import Session

from studio.errors import InvalidError
from studio.services import (
    fields,
    finding,
    progress,
    run_groups,
    run_table,
    runs,
    summaries,
    terms,
    views,
)
from studio.services.run_table import NEWEST, Line, View
from studio.services.terms import QueryError
from studio.web import run_table as shown
from studio.web.deps import DB
from studio.web.render import page
from studio.web.run_table import Asked, Row, address

router = APIRouter(include_in_schema=False)

PAGE = 50


@router.get("/runs")
@router.get("/")
def home(request: Request, db: DB, asked: Annotated[Asked, Query()]) -> Response:
    view = asked.view
    wrong: InvalidError | None = None
    try:
        found = _found(db, view, asked)
    except QueryError as error:
        found, wrong = _found(db, View(query="is:trashed -is:trashed"), Asked()), error
    except InvalidError as error:
        found, wrong = _found(db, replace(view, sort=NEWEST), asked), error
    answer = page(
        request,
        "runs/list.html",
        view=view,
        wrong=wrong,
        here=address(view, open=asked.open),
        address=address,
        chips=_chips(view),
        live=runs.live(db),
        progress_of=progress.of,
        saved=views.listed(db),
        vocabulary=fields.names(summaries.keys(db)),
        **found,
    )
    # Htmx calls a request whole that selects a part of the answer; a boosted link wants all of it.
    if wrong and "HX-Request" in request.headers and "HX-Boosted" not in request.headers:
        # What was found stays on screen; only what is wrong is told, beside the box.
        answer.headers.update({"HX-Reswap": "none", "HX-Push-Url": "false"})
    return answer


def baseline(db: Session, view: View, columns: Sequence[fields.Field]) -> Line | None:
    found = run_table.lines(db, [view.base], columns) if view.base else []
    return found[0] if found else None


def _found(db: Session, view: View, asked: Asked) -> dict[str, Any]:
    grouped = run_groups.of(db, view)
    if grouped:
        base = baseline(db, view, grouped.columns)
        opened = {
            one: _rows(db, replace(view, query=f"{view.query} {one}"), base) for one in asked.open
        }
        return {
            "heads": shown.heads(view, grouped.columns),
            "bunches": shown.bunches(view, grouped, asked.open, opened),
            "grouped": shown.title(grouped.field),
            "rows": [],
            "base": None,
            "next": "",
            "total": grouped.total,
            "any_runs": grouped.total or _any(db),
        }
    found = run_table.page(db, view, limit=PAGE, after=asked.after)
    base = baseline(db, view, found.columns)
    pinned = base and asked.after is None
    return {
        "heads": shown.heads(view, found.columns),
        "bunches": None,
        "grouped": "",
        "rows": [
            shown.row(line, found.columns, base)
            for line in found.lines
            if not base or line.run.id != base.run.id
        ],
        "base": shown.row(base, found.columns, base) if base and pinned else None,
        "next": address(view, after=found.lines[-1].run.id) if found.has_more else "",
        "total": found.total,
        "any_runs": found.total or _any(db),
    }


def _rows(db: Session, view: View, base: Line | None) -> list[Row]:
    found = run_table.page(db, view, limit=PAGE)
    return [shown.row(line, found.columns, base) for line in found.lines]


def _any(db: Session) -> bool:
    return bool(runs.newest(db, runs.Filter(archived=True), limit=1))


def _chips(view: View) -> list[tuple[str, str]]:
    """Return each term of the query, and where the table is without it."""
    return [
        (
            view.query[term.start : term.end],
            address(replace(view, query=terms.without(view.query, term))),
        )
        for term in finding.chips(view.query)
    ]
