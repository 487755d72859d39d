"""Choose the language of the pages."""

from typing import Annotated
from urllib.parse import urlsplit

from fastapi import APIRouter, Form, Request
from fastapi.responses import RedirectResponse, Response

from studio.errors import InvalidError
from studio.web.i18n.locale import LANGUAGE_COOKIE, LANGUAGES

router = APIRouter(include_in_schema=False)

_COOKIE_SECONDS = 365 * 24 * 60 * 60


@router.post("/language")
def choose_language(request: Request, language: Annotated[str, Form()]) -> Response:
    if language not in LANGUAGES:
        raise InvalidError(
            "This language is not available.",
            hint=f"Choose one of {', '.join(LANGUAGES)}.",
        )
    response = RedirectResponse(_referring_page(request), status_code=303)
    response.set_cookie(
        LANGUAGE_COOKIE, language, max_age=_COOKIE_SECONDS, httponly=True, samesite="lax"
    )
    return response


def _referring_page(request: Request) -> str:
    """Return the page that sent the form, if it is one of ours."""
    referrer = urlsplit(request.headers.get("referer", ""))
    is_ours = referrer.netloc == request.headers.get("host")
    path = "/" + referrer.path.lstrip("/") if is_ours else "/"
    return f"{path}?{referrer.query}" if is_ours and referrer.query else path
