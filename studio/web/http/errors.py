"""Where the studio's errors meet HTTP: for people a page in words, for programs one JSON shape."""

import logging
from collections.abc import Iterator
from dataclasses import asdict
from http import HTTPStatus
from itertools import groupby
from typing import Any

from fastapi import FastAPI, Request
from fastapi.dependencies.utils import get_flat_params
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from fastapi.routing import APIRoute
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
    TooManyRequestsError,
    UnauthorizedError,
    UnavailableError,
)
from studio.schemas.validation_errors import FieldError, field_errors
from studio.web.auth.security_headers import SECURITY_HEADERS
from studio.web.http import openai_errors
from studio.web.rendering.render import block, page, wants_fragment

log = logging.getLogger(__name__)

STATUS_CODES: dict[type[StudioError], int] = {
    UnauthorizedError: 401,
    ForbiddenError: 403,
    NotFoundError: 404,
    ConflictError: 409,
    StaleError: 412,
    TooLargeError: 413,
    InvalidError: 422,
    TooManyRequestsError: 429,
    UnavailableError: 503,
    DiskFullError: 507,
}

RETRY_SECONDS = 5
"""When to come back after a 503. Asked sooner, a busy database is only busier."""

STATUS_HEADERS: dict[int, dict[str, str]] = {
    HTTPStatus.UNAUTHORIZED: {"WWW-Authenticate": "Bearer"},
    HTTPStatus.TOO_MANY_REQUESTS: {"Retry-After": "60"},
    HTTPStatus.SERVICE_UNAVAILABLE: {"Retry-After": str(RETRY_SECONDS)},
}

UNEXPECTED_ERROR = StudioError(
    "Something went wrong in the studio itself.",
    hint="Nothing was changed. The studio's log has the details.",
)


_HTTP_MESSAGES = {
    HTTPStatus.BAD_REQUEST: (
        "The body of this request could not be read.",
        "Send JSON in UTF-8 with Content-Type: application/json, or a complete form.",
    ),
    HTTPStatus.NOT_FOUND: (
        "There is nothing at {path}.",
        "The address may be misspelt, or what was there deleted.",
    ),
    HTTPStatus.METHOD_NOT_ALLOWED: (
        "{path} does not take {method}.",
        "The Allow header lists what it takes; /docs describes every call.",
    ),
}
"""What errors of the HTTP layer say: a message and a hint."""


def install_handlers(app: FastAPI) -> None:
    app.add_exception_handler(StudioError, _handle_studio_error)
    app.add_exception_handler(RequestValidationError, _handle_validation_error)
    app.add_exception_handler(HTTPException, _handle_http_exception)
    app.add_exception_handler(Exception, _handle_unexpected_error)


def error_body(error: StudioError, errors: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    """Return the one shape in which the API tells of errors."""
    told: dict[str, Any] = {
        "code": error.code,
        "message": error.message,
        "hint": error.hint,
        "param": error.param or None,
    }
    return {"error": told | ({"errors": errors} if errors else {})}


def status_for(error: StudioError) -> int:
    return next((STATUS_CODES[kind] for kind in type(error).__mro__ if kind in STATUS_CODES), 500)


async def _handle_studio_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, StudioError)  # noqa: S101 -- registered for nothing else
    return error_response(request, error)


def error_response(request: Request, error: StudioError) -> Response:
    """Answer with an error: a page for people, JSON for programs."""
    status = status_for(error)
    return _respond(request, error, status, STATUS_HEADERS.get(status))


async def _handle_validation_error(request: Request, error: Exception) -> Response:
    """Tell of each bad field. The input is not echoed: it may hold what JSON cannot say."""
    assert isinstance(error, RequestValidationError)  # noqa: S101 -- registered for nothing else
    fields = list(_field_errors(request, error))
    first = fields[0]
    told = InvalidError(f"{first.param or 'The body'}: {first.message}", param=first.param)
    if request.url.path.startswith("/api/"):
        return JSONResponse(error_body(told, [asdict(field) for field in fields]), 422)
    return _respond(request, told, 422)


def _field_errors(request: Request, error: RequestValidationError) -> Iterator[FieldError]:
    """Yield the errors of each part of a request: its path, query, headers and body."""
    route = request.scope.get("route")
    models = request_models(route) if isinstance(route, APIRoute) else {}
    for part, errors in groupby(error.errors(), lambda item: item["loc"][0]):
        inner = [item | {"loc": item["loc"][1:]} for item in errors]
        yield from field_errors(inner, models.get(part))


def request_models(route: APIRoute) -> dict[str, Any]:
    """Return what each part of a request to a route may hold, as `field_errors` takes it."""
    given = {field.alias: field.field_info for field in get_flat_params(route.dependant)}
    body_info = route.body_field.field_info if route.body_field else None
    return dict.fromkeys(("path", "query", "header", "cookie"), given) | {"body": body_info}


async def _handle_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 -- registered for nothing else
    status, path = HTTPStatus(error.status_code), request.scope["path"]
    message, hint = _HTTP_MESSAGES.get(status, ("{phrase}: {path}.", ""))
    written = message.format(phrase=status.phrase, path=path, method=request.method)
    told = StudioError(written, hint=hint)
    told.code = status.name.lower()
    return _respond(request, told, error.status_code, error.headers)


async def _handle_unexpected_error(request: Request, error: Exception) -> Response:
    # This handler stands outside of the layers that add the id, and the headers of safety.
    known = request.state.request_id
    about = {"path": request.scope["path"], "request_id": known}
    log.error("request_failed", exc_info=error, extra=about)
    answer = _respond(request, UNEXPECTED_ERROR, 500)
    answer.headers.update(SECURITY_HEADERS | {"X-Request-ID": known})
    return answer


def _respond(
    request: Request,
    error: StudioError,
    status: int,
    headers: Any = None,  # noqa: ANN401 -- as Starlette has it
) -> Response:
    if openai_errors.is_openai_path(request.scope["path"]):
        return openai_errors.openai_error_response(error, status, headers)
    if request.scope["path"].startswith("/api/"):
        return JSONResponse(error_body(error), status, headers=headers)
    draw = block if wants_fragment(request) else None
    if draw:
        drawn = block(request, "error.html", "message", status=status, error=error)
    else:
        drawn = page(request, "error.html", status=status, error=error)
    drawn.headers.update(headers or {})
    return drawn
