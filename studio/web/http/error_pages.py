"""Pages for errors: what went wrong in plain words, and what to do next."""

from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import quote

from fastapi import Request
from fastapi.responses import HTMLResponse

from studio.errors import StudioError
from studio.web.auth import template_permissions
from studio.web.auth.security_headers import SAFE_METHODS
from studio.web.i18n.locale import gettext
from studio.web.rendering.navigation import NAV_ITEMS
from studio.web.rendering.render import page, referring_page

if TYPE_CHECKING:
    from studio.web.http.not_found import Offers

_TITLES = {
    HTTPStatus.BAD_REQUEST: "Not understood",
    HTTPStatus.UNAUTHORIZED: "Sign in first",
    HTTPStatus.FORBIDDEN: "Not allowed",
    HTTPStatus.NOT_FOUND: "Not found",
    HTTPStatus.METHOD_NOT_ALLOWED: "Not a page",
    HTTPStatus.CONFLICT: "Not possible now",
    HTTPStatus.PRECONDITION_FAILED: "Changed in the meantime",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "Too large",
    HTTPStatus.MISDIRECTED_REQUEST: "Wrong address",
    HTTPStatus.UNPROCESSABLE_ENTITY: "Not understood",
    HTTPStatus.TOO_MANY_REQUESTS: "Too many requests",
    HTTPStatus.SERVICE_UNAVAILABLE: "Not available at the moment",
    HTTPStatus.INSUFFICIENT_STORAGE: "The disk is full",
}
_OTHER_TITLE = "Something went wrong"

_TRY_AGAIN = frozenset(
    {
        HTTPStatus.TOO_MANY_REQUESTS,
        HTTPStatus.INTERNAL_SERVER_ERROR,
        HTTPStatus.SERVICE_UNAVAILABLE,
        HTTPStatus.INSUFFICIENT_STORAGE,
    }
)
"""The same request may succeed later."""

_ACTION_ONLY = StudioError(
    "This address carries out an action; it is not a page.",
    hint="Use the button for it on the page it belongs to.",
)


@dataclass(frozen=True, slots=True)
class Step:
    """A link that leads on."""

    label: str
    href: str


def error_page(request: Request, error: StudioError, status: int) -> HTMLResponse:
    """Return a page of the whole frame, for a browser."""
    is_read = request.method in SAFE_METHODS
    if status == HTTPStatus.METHOD_NOT_ALLOWED and is_read:
        error = _ACTION_ONLY
    offers = _find_offers(request) if status == HTTPStatus.NOT_FOUND else None
    return page(
        request,
        "error.html",
        status=status,
        title=_title(status),
        message=error.message,
        hint=offers.note if offers and offers.note else error.hint,
        offers=offers if offers and offers.items else None,
        is_problem=status != HTTPStatus.NOT_FOUND,
        steps=list(_steps(request, status, is_listed=offers is not None)),
    )


def plain_error_page(request: Request, error: StudioError, status: int) -> HTMLResponse:
    """Return a page without menu, for a caller who may not know of anything here."""
    return page(
        request,
        "error_plain.html",
        status=status,
        title=_title(status),
        message=error.message,
        hint=error.hint,
        back="" if request.method in SAFE_METHODS else referring_page(request, "/"),
    )


def _find_offers(request: Request) -> "Offers | None":
    from studio.web.http import not_found  # noqa: PLC0415 -- heavy import

    return not_found.find_offers(request)


def _title(status: int) -> str:
    return _TITLES.get(HTTPStatus(status), _OTHER_TITLE)


def _steps(request: Request, status: int, *, is_listed: bool) -> Iterator[Step]:
    path, query = request.scope["path"], request.scope["query_string"].decode("latin-1")
    if request.method not in SAFE_METHODS:
        yield Step(gettext("Go back"), referring_page(request, "/"))
        return
    if status in _TRY_AGAIN:
        yield Step(gettext("Try again"), f"{path}?{query}" if query else path)
    if status == HTTPStatus.FORBIDDEN and template_permissions.may("GET", "/settings/access"):
        yield Step(gettext("See your access"), "/settings/access")
    if status == HTTPStatus.UNPROCESSABLE_ENTITY and query:
        yield Step(gettext("Open the page without these values"), path)
    if status in {HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED}:
        yield from _page_of_menu(path) if is_listed else _page_above(request, path)


def _page_of_menu(path: str) -> Iterator[Step]:
    """Yield the page of the menu that a path belongs to, unless each error page links it."""
    items = (item for item in NAV_ITEMS if item.href != "/" and item.is_active_for(path))
    for item in items:
        yield Step(gettext("Open %(page)s") % {"page": gettext(item.page_title)}, item.href)


def _page_above(request: Request, path: str) -> Iterator[Step]:
    """Yield the nearest page above a path that the caller may open."""
    routes = request.app.state.routes
    above = path.rstrip("/").rpartition("/")[0]
    while above and not routes.find("GET", above).template:
        above = above.rpartition("/")[0]
    address = quote(above)
    if above not in {"", "/runs"} and template_permissions.may("GET", address):
        yield Step(gettext("Open %(path)s") % {"path": above}, address)
