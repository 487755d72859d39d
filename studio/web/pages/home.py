"""The first page: what runs now, and every run there was."""

from typing import Annotated, Literal
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from studio.db.states import RunStatus
from studio.services import progress, runs
from studio.web.deps import DB
from studio.web.render import page

router = APIRouter(include_in_schema=False)

PAGE = 50

Search = Annotated[str, Query(max_length=200)]


@router.get("/")
def home(
    request: Request,
    db: DB,
    q: Search = "",
    status: RunStatus | Literal[""] = "",
    before: int | None = None,
) -> Response:
    which = runs.Filter(search=q.strip(), status=status or None)
    found = runs.newest(db, which, limit=PAGE + 1, before=before)
    return page(
        request,
        "runs/list.html",
        runs=found[:PAGE],
        next=_older(q, status, found[PAGE - 1].id) if len(found) > PAGE else "",
        total=runs.count(db, which),
        filtered=bool(q.strip() or status),
        q=q,
        wanted=status,
        statuses=list(RunStatus),
        live=runs.live(db),
        progress_of=progress.of,
    )


def _older(q: str, status: str, before: int | None) -> str:
    return "/?" + urlencode({"q": q, "status": status, "before": before})
