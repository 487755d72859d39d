"""Exception handlers: an error page for browsers, JSON for clients of our API and of OpenAI's."""

import logging
from collections.abc import Iterator, Mapping
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
from studio.web.auth import template_permissions
from studio.web.auth.security_headers import SECURITY_HEADERS
from studio.web.http.error_pages import error_page
from studio.web.rendering.render import block, wants_fragment

PREFIX = "/v1"

NO_RETRY_HEADERS = {"x-should-retry": "false"}
"""Tells OpenAI's clients, which retry after a 409 and any 5xx, not to."""

_NO_RETRY_STATUSES = frozenset({HTTPStatus.CONFLICT, HTTPStatus.INSUFFICIENT_STORAGE})
_OPENAI_STATUSES = {HTTPStatus.UNPROCESSABLE_ENTITY: HTTPStatus.BAD_REQUEST}
"""OpenAI's status where the studio's own API uses a different one."""

_ERROR_TYPES = {
    HTTPStatus.UNAUTHORIZED: "authentication_error",
    HTTPStatus.FORBIDDEN: "permission_error",
}
_PARAM_NAMES = {"base_model": "model", "dataset": "training_file"}
"""OpenAI's names of recipe fields."""


def is_openai_path(path: str) -> bool:
    return path == PREFIX or path.startswith(f"{PREFIX}/")


def openai_error_response(
    error: StudioError, status: int, headers: Mapping[str, str] | None = None
) -> JSONResponse:
    http_status = HTTPStatus(status)
    openai_status = _OPENAI_STATUSES.get(http_status, http_status)
    kind = (
        "server_error"
        if openai_status >= HTTPStatus.INTERNAL_SERVER_ERROR
        else "invalid_request_error"
    )
    envelope = {
        "message": f"{error.message} {error.hint}".strip(),
        "type": _ERROR_TYPES.get(openai_status, kind),
        "param": _PARAM_NAMES.get(error.param, error.param) or None,
        "code": error.code,
    }
    retry = NO_RETRY_HEADERS if http_status in _NO_RETRY_STATUSES else {}
    return JSONResponse({"error": envelope}, openai_status, headers={**(headers or {}), **retry})


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
"""When to retry after a 503. Retrying sooner only adds load to a busy database."""

STATUS_HEADERS: dict[int, dict[str, str]] = {
    HTTPStatus.UNAUTHORIZED: {"WWW-Authenticate": "Bearer"},
    HTTPStatus.TOO_MANY_REQUESTS: {"Retry-After": "60"},
    HTTPStatus.SERVICE_UNAVAILABLE: {"Retry-After": str(RETRY_SECONDS)},
}

UNEXPECTED_ERROR = StudioError(
    "Something went wrong in the studio.",
    hint="Nothing was changed. Try again; if it happens again, look for the request ID in the "
    "studio's log.",
)


TOO_LARGE_TEXTS = (
    "The request is too large.",
    "Send less at once. Files belong to Data: upload them there, and choose them by name.",
)

_HTTP_MESSAGES = {
    HTTPStatus.BAD_REQUEST: (
        "Could not read the request body.",
        "Send JSON in UTF-8 with Content-Type: application/json, or a complete form.",
    ),
    HTTPStatus.NOT_FOUND: (
        "Not found: {path}.",
        "It may have moved or been deleted.",
    ),
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: TOO_LARGE_TEXTS,
    HTTPStatus.METHOD_NOT_ALLOWED: (
        "{path} does not accept {method} requests.",
        "The Allow header lists the supported methods; /docs describes every call.",
    ),
}
"""The message and hint of errors raised by the HTTP layer."""


def install_handlers(app: FastAPI) -> None:
    app.add_exception_handler(StudioError, _handle_studio_error)
    app.add_exception_handler(RequestValidationError, _handle_validation_error)
    app.add_exception_handler(HTTPException, _handle_http_exception)
    app.add_exception_handler(Exception, _handle_unexpected_error)


def error_body(error: StudioError, errors: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    """Return an error in the JSON schema of the API."""
    body: dict[str, Any] = {
        "code": error.code,
        "message": error.message,
        "hint": error.hint,
        "param": error.param or None,
    }
    return {"error": body | ({"errors": errors} if errors else {})}


def status_for(error: StudioError) -> int:
    return next((STATUS_CODES[kind] for kind in type(error).__mro__ if kind in STATUS_CODES), 500)


async def _handle_studio_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, StudioError)  # noqa: S101 -- registered for nothing else
    return error_response(request, error)


def error_response(request: Request, error: StudioError) -> Response:
    """Return an error response: a page for browsers, JSON for API clients."""
    status = status_for(error)
    return _respond(request, error, status, STATUS_HEADERS.get(status))


async def _handle_validation_error(request: Request, error: Exception) -> Response:
    """Report each invalid field. The input is not echoed: JSON may be unable to represent it."""
    assert isinstance(error, RequestValidationError)  # noqa: S101 -- registered for nothing else
    is_api = request.scope["path"].startswith(("/api/", f"{PREFIX}/"))
    if not is_api and any(item["loc"][0] == "path" for item in error.errors()):
        # A page whose id cannot be one is a page that does not exist.
        return await _handle_http_exception(request, HTTPException(HTTPStatus.NOT_FOUND))
    fields = list(_field_errors(request, error))
    first = fields[0]
    summary = InvalidError(f"{first.param or 'The body'}: {first.message}", param=first.param)
    if request.scope["path"].startswith("/api/"):
        return JSONResponse(error_body(summary, [asdict(field) for field in fields]), 422)
    return _respond(request, summary, 422)


def _field_errors(request: Request, error: RequestValidationError) -> Iterator[FieldError]:
    """Yield the errors of each part of a request: its path, query, headers and body."""
    route = request.scope.get("route")
    models = request_models(route) if isinstance(route, APIRoute) else {}
    for part, errors in groupby(error.errors(), lambda item: item["loc"][0]):
        inner = [item | {"loc": item["loc"][1:]} for item in errors]
        yield from field_errors(inner, models.get(part))


def request_models(route: APIRoute) -> dict[str, Any]:
    """Return the fields of each part of a route's request, for `field_errors`."""
    parameters = {field.alias: field.field_info for field in get_flat_params(route.dependant)}
    body_info = route.body_field.field_info if route.body_field else None
    return dict.fromkeys(("path", "query", "header", "cookie"), parameters) | {"body": body_info}


async def _handle_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 -- registered for nothing else
    status, path = HTTPStatus(error.status_code), request.scope["path"]
    message, hint = _HTTP_MESSAGES.get(status, ("{phrase}: {path}.", ""))
    text = message.format(phrase=status.phrase, path=path, method=request.method)
    studio_error = StudioError(text, hint=hint)
    studio_error.code = status.name.lower()
    return _respond(request, studio_error, error.status_code, error.headers)


async def _handle_unexpected_error(request: Request, error: Exception) -> Response:
    # This handler runs outside the middleware that adds the request id and security headers.
    request_id = request.state.request_id
    details = {"path": request.scope["path"], "request_id": request_id}
    log.error("request_failed", exc_info=error, extra=details)
    viewer = getattr(request.state, "who", None)
    with template_permissions.rendering_for(viewer, request.app.state.routes):
        response = _respond(request, UNEXPECTED_ERROR, 500)
    response.headers.update(SECURITY_HEADERS | {"X-Request-ID": request_id})
    return response


def _respond(
    request: Request,
    error: StudioError,
    status: int,
    headers: Any = None,  # noqa: ANN401 -- as in Starlette
) -> Response:
    if is_openai_path(request.scope["path"]):
        return openai_error_response(error, status, headers)
    if request.scope["path"].startswith("/api/"):
        return JSONResponse(error_body(error), status, headers=headers)
    if wants_fragment(request):
        texts = {"message": error.message, "hint": error.hint, "is_problem": True}
        response = block(request, "error.html", "message", status=status, **texts)
    else:
        response = error_page(request, error, status)
    response.headers.update(headers or {})
    return response
