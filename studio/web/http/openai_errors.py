"""Errors as OpenAI's interface tells them, and whether its clients should try again."""

from collections.abc import Mapping
from http import HTTPStatus

from starlette.responses import JSONResponse

from studio.errors import StudioError

PREFIX = "/v1"

NOT_AGAIN = {"x-should-retry": "false"}
"""Tells OpenAI's clients, which try again after a 409 and any 5xx, that it would be in vain."""

_IN_VAIN = frozenset({HTTPStatus.CONFLICT, HTTPStatus.INSUFFICIENT_STORAGE})
_STATUS = {HTTPStatus.UNPROCESSABLE_ENTITY: HTTPStatus.BAD_REQUEST}
"""What OpenAI answers where the studio's own interface has another status."""

_TYPES = {HTTPStatus.UNAUTHORIZED: "authentication_error", HTTPStatus.FORBIDDEN: "permission_error"}
_PARAMS = {"base_model": "model", "dataset": "training_file"}
"""What OpenAI calls fields of a recipe."""


def is_wanted(path: str) -> bool:
    return path == PREFIX or path.startswith(f"{PREFIX}/")


def answer(
    error: StudioError, status: int, headers: Mapping[str, str] | None = None
) -> JSONResponse:
    known = HTTPStatus(status)
    told = _STATUS.get(known, known)
    kind = "server_error" if told >= HTTPStatus.INTERNAL_SERVER_ERROR else "invalid_request_error"
    envelope = {
        "message": f"{error.message} {error.hint}".strip(),
        "type": _TYPES.get(told, kind),
        "param": _PARAMS.get(error.param, error.param) or None,
        "code": error.code,
    }
    retry = NOT_AGAIN if known in _IN_VAIN else {}
    return JSONResponse({"error": envelope}, told, headers={**(headers or {}), **retry})
