"""Choosing the language of the pages by hand."""

from typing import Annotated
from urllib.parse import urlsplit

from fastapi import APIRouter, Form, Request
from fastapi.responses import RedirectResponse, Response

from studio.errors import InvalidError
from studio.web.i18n.locale import COOKIE, TONGUES

router = APIRouter(include_in_schema=False)

_YEAR = 365 * 24 * 60 * 60


@router.post("/language")
def choose(request: Request, language: Annotated[str, Form()]) -> Response:
    if language not in TONGUES:
        raise InvalidError(
            "The studio does not speak that language.", hint=f"Choose one of {', '.join(TONGUES)}."
        )
    answer = RedirectResponse(_back(request), status_code=303)
    answer.set_cookie(COOKIE, language, max_age=_YEAR, httponly=True, samesite="lax")
    return answer


def _back(request: Request) -> str:
    """Return the page of ours that asked, and no other site's."""
    came = urlsplit(request.headers.get("referer", ""))
    is_ours = came.netloc == request.headers.get("host")
    path = "/" + came.path.lstrip("/") if is_ours else "/"
    return f"{path}?{came.query}" if is_ours and came.query else path
