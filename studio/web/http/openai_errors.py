"""Errors in the format of OpenAI's API, and whether its clients should retry."""

from collections.abc import Mapping
from http import HTTPStatus

from starlette.responses import JSONResponse

from studio.errors import StudioError

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
