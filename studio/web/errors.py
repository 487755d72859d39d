"""Where the studio's errors meet HTTP: for people a page in words, for programs one JSON shape."""

import logging
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from studio.errors import (
    ConflictError,
    DiskFullError,
    ForbiddenError,
    InvalidError,
    NotFoundError,
    StaleError,
    StudioError,
    TooLargeError,
    TooManyError,
    UnavailableError,
    UnknownPersonError,
)
from studio.web import envelope
from studio.web.render import asked_by_htmx, block, page
from studio.web.safety import HEADERS

log = logging.getLogger(__name__)

STATUS: dict[type[StudioError], int] = {
    UnknownPersonError: 401,
    ForbiddenError: 403,
    NotFoundError: 404,
    ConflictError: 409,
    StaleError: 412,
    TooLargeError: 413,
    InvalidError: 422,
    TooManyError: 429,
    UnavailableError: 503,
    DiskFullError: 507,
}

RETRY_SECONDS = 5
"""When to come back after a 503. Asked sooner, a busy database is only busier."""

HEADERS_OF: dict[int, dict[str, str]] = {
    HTTPStatus.UNAUTHORIZED: {"WWW-Authenticate": "Bearer"},
    HTTPStatus.TOO_MANY_REQUESTS: {"Retry-After": "60"},
    HTTPStatus.SERVICE_UNAVAILABLE: {"Retry-After": str(RETRY_SECONDS)},
}

UNEXPECTED = StudioError(
    "Something went wrong in the studio itself.",
    hint="Nothing was changed. The studio's log has the details.",
)


def install(app: FastAPI) -> None:
    app.add_exception_handler(StudioError, _expected)
    app.add_exception_handler(RequestValidationError, _malformed)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(Exception, _unexpected)


def body(error: StudioError, errors: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    """Return the one shape in which the API tells of errors."""
    told: dict[str, Any] = {
        "code": error.code,
        "message": error.message,
        "hint": error.hint,
        "param": error.param or None,
    }
    return {"error": told | ({"errors": errors} if errors else {})}


def status_of(error: StudioError) -> int:
    return next((STATUS[kind] for kind in type(error).__mro__ if kind in STATUS), 500)


async def _expected(request: Request, error: Exception) -> Response:
    assert isinstance(error, StudioError)  # noqa: S101 -- registered for nothing else
    return told(request, error)


def told(request: Request, error: StudioError) -> Response:
    """Answer with an error: a page for people, JSON for programs."""
    status = status_of(error)
    return _answer(request, error, status, HEADERS_OF.get(status))


async def _malformed(request: Request, error: Exception) -> Response:
    """Tell of each bad field. The input is not echoed: it may hold what JSON cannot say."""
    assert isinstance(error, RequestValidationError)  # noqa: S101 -- registered for nothing else
    fields = [
        {"param": ".".join(map(str, item["loc"][1:])), "message": item["msg"]}
        for item in error.errors()
    ]
    first = fields[0]
    told = InvalidError(
        f"{first['param'] or 'The body'}: {first['message']}.", param=first["param"]
    )
    if request.url.path.startswith("/api/"):
        return JSONResponse(body(told, fields), 422)
    return _answer(request, told, 422)


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 -- registered for nothing else
    told = StudioError(f"{HTTPStatus(error.status_code).phrase}: {request.scope['path']}.")
    told.code = HTTPStatus(error.status_code).name.lower()
    if error.status_code == HTTPStatus.NOT_FOUND:
        told.hint = "The address may be misspelt, or the thing deleted."
    return _answer(request, told, error.status_code, error.headers)


async def _unexpected(request: Request, error: Exception) -> Response:
    # This handler stands outside of the layers that add the id, and the headers of safety.
    known = request.state.request_id
    about = {"path": request.scope["path"], "request_id": known}
    log.error("request_failed", exc_info=error, extra=about)
    answer = _answer(request, UNEXPECTED, 500)
    answer.headers.update(HEADERS | {"X-Request-ID": known})
    return answer


def _answer(
    request: Request,
    error: StudioError,
    status: int,
    headers: Any = None,  # noqa: ANN401 -- as Starlette has it
) -> Response:
    if envelope.is_wanted(request.scope["path"]):
        return envelope.answer(error, status, headers)
    if request.scope["path"].startswith("/api/"):
        return JSONResponse(body(error), status, headers=headers)
    draw = block if asked_by_htmx(request) else None
    if draw:
        drawn = block(request, "error.html", "message", status=status, error=error)
    else:
        drawn = page(request, "error.html", status=status, error=error)
    drawn.headers.update(headers or {})
    return drawn
