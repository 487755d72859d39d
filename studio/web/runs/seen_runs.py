"""Which ended runs, sweeps and studies a browser has seen, in a cookie that all its tabs share.

Each counts as seen once its page was opened after it ended, or once it was dismissed; showing the
list of what ended alone changes nothing, so no tab hides news from another.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Annotated

from fastapi import APIRouter, Form, Request
from fastapi.responses import Response

from studio.web.rendering.render import redirect, wants_fragment

router = APIRouter(include_in_schema=False)

COOKIE = "seen_runs"
COOKIE_SECONDS = 365 * 24 * 60 * 60
FIRST_LOOK = timedelta(days=1)
"""How far back a browser looks that has no cookie yet."""
MAX_KEYS = 100
"""A cookie has at most 4 KB."""

_KEY = r"[sp]?\d{1,15}-\d{1,10}"
_VALUE = re.compile(rf"(\d{{1,10}}(?:\.\d{{1,6}})?):((?:{_KEY}(?:\.|$))*)")


@dataclass(frozen=True, slots=True)
class SeenRuns:
    since: datetime
    """All that ended until then is seen."""
    keys: Sequence[str] = ()
    """The ends that were seen after that, the oldest first: see `recent_ends`."""

    @property
    def cookie_value(self) -> str:
        return f"{self.since.timestamp():.6f}:{'.'.join(self.keys)}"


def read(request: Request) -> SeenRuns:
    match = _VALUE.fullmatch(request.cookies.get(COOKIE, ""))
    if match is None:
        return SeenRuns(datetime.now(UTC) - FIRST_LOOK)
    since = datetime.fromtimestamp(float(match[1]), UTC)
    return SeenRuns(since, tuple(filter(None, match[2].split("."))))


def mark_seen(request: Request, response: Response, key: str) -> None:
    """Remember that the browser has seen how something ended."""
    seen = read(request)
    if key not in seen.keys:
        _write(response, replace(seen, keys=[*seen.keys, key][-MAX_KEYS:]))


@router.post("/runs/seen")
def dismiss(
    request: Request,
    until: Annotated[datetime | None, Form()] = None,
    key: Annotated[str, Form(pattern=rf"^({_KEY})?$")] = "",
) -> Response:
    """Dismiss the end of one thing, or of all until a time."""
    seen = read(request)
    if wants_fragment(request):
        response = Response(status_code=204, headers={"HX-Trigger": "runs-seen"})
    else:
        response = redirect(request, "/")
    if until:
        _write(response, SeenRuns(max(until.astimezone(UTC), seen.since)))
    elif key:
        _write(response, replace(seen, keys=[*seen.keys, key][-MAX_KEYS:]))
    return response


def _write(response: Response, seen: SeenRuns) -> None:
    response.set_cookie(
        COOKIE, seen.cookie_value, max_age=COOKIE_SECONDS, httponly=True, samesite="lax"
    )
