"""Add to FastAPI's OpenAPI document what all routes share: errors, ETags, idempotency keys."""

from typing import Any

from fastapi.openapi.models import ParameterInType
from pydantic import BaseModel

from studio.schemas.field_docs import FieldDocs
from studio.web.api.conventions import NEVER_STORED
from studio.web.api.datasets.datasets import NewImport
from studio.web.http import errors
from studio.web.http.idempotency import REPLAY_HEADER

_ERROR_DESCRIPTIONS = {
    "400": "The request body cannot be parsed.",
    "401": "Authentication is missing or invalid.",
    "403": "You lack permission, or the request came from another site.",
    "404": "Not found.",
    "409": "The current state does not allow this.",
    "412": "Someone else changed it since you read it.",
    "413": "The request is too large.",
    "421": "The `Host` header is not an address of this studio.",
    "422": "A value is invalid; `errors` lists each field.",
    "500": "A bug in the studio; nothing was changed.",
    "503": "Something is missing or busy. Try again after `Retry-After`.",
    "507": "Not enough disk space.",
}
_COMMON_STATUSES = ("401", "403", "404", "409", "421", "422", "500", "503")
_WRITE_STATUSES = ("400", "413", "507")

_IDEMPOTENCY_KEY = {
    "name": "Idempotency-Key",
    "in": ParameterInType.header.value,
    "required": False,
    "schema": {"type": "string", "minLength": 1, "maxLength": 255},
    "description": "A unique key that you choose for this request. If you repeat the request with "
    f"the same key, it is not executed again: you get the first response, with `{REPLAY_HEADER}: "
    "true`. A key is kept for a day; using it with another body is an error.",
}
_ETAG = {"ETag": {"schema": {"type": "string"}, "description": "Send it as `If-Match`."}}
_CREATED_STATUSES = {"201", "202"}
ERROR, OPENAI = "Error", "OpenAIError"
_ERROR_SCHEMAS = {ERROR: "Refusal", OPENAI: "OpenAIRefusal"}
"""Schemas of error responses: of our API and of the OpenAI-compatible one."""

_REF_TEMPLATE = "#/components/schemas/{model}"


class OpenAIErrorBody(BaseModel):
    """Why a request of the OpenAI-compatible API failed."""

    message: str
    type: str
    param: str | None
    code: str | None


class FieldProblem(FieldDocs, BaseModel):
    """A problem with one field."""

    param: str
    """Dotted name of the field."""
    message: str


class Problem(FieldDocs, BaseModel):
    """Why a request failed."""

    code: str
    """Stable across versions."""
    message: str
    """What happened, in a sentence."""
    hint: str
    """What to do about it; may be empty."""
    param: str | None
    """Dotted name of the invalid field."""
    errors: list[FieldProblem] | None = None
    """All invalid fields, if any are."""


def add_shared_parts(document: dict[str, Any]) -> dict[str, Any]:
    """Add the responses and parameters that all calls share."""
    components = document["components"]
    components["schemas"] |= _error_schemas()
    components["schemas"].pop("HTTPValidationError", None)
    components["schemas"].pop("ValidationError", None)
    components["responses"] = {
        f"{kind}{status}": _error_response(kind, status)
        for kind in _ERROR_SCHEMAS
        for status in _ERROR_DESCRIPTIONS
    }
    components["parameters"] = {"IdempotencyKey": _IDEMPOTENCY_KEY}
    for address, path in document["paths"].items():
        for method, operation in path.items():
            _complete_operation(
                method, operation, OPENAI if errors.is_openai_path(address) else ERROR
            )
        if "if-match" in _parameter_names(path.get("patch", {})):
            path["patch"]["responses"]["412"] = {"$ref": "#/components/responses/Error412"}
            for method in path.keys() & {"get", "patch"}:
                path[method]["responses"]["200"]["headers"] = _ETAG
    return document


def _parameter_names(operation: dict[str, Any]) -> set[str]:
    return {parameter.get("name", "") for parameter in operation.get("parameters", ())}


def _complete_operation(method: str, operation: dict[str, Any], kind: str) -> None:
    responses = operation["responses"]
    for status in (
        *_COMMON_STATUSES,
        *(() if method == "get" and kind is ERROR else _WRITE_STATUSES),
    ):
        responses[status] = {"$ref": f"#/components/responses/{kind}{status}"}
    accepts_key = not operation.keys() & NEVER_STORED
    if method == "post" and responses.keys() & _CREATED_STATUSES and accepts_key:
        reference = {"$ref": "#/components/parameters/IdempotencyKey"}
        operation["parameters"] = [*operation.get("parameters", ()), reference]


def _error_response(kind: str, status: str) -> dict[str, Any]:
    schema = {"$ref": f"#/components/schemas/{_ERROR_SCHEMAS[kind]}"}
    return {
        "description": _ERROR_DESCRIPTIONS[status],
        "content": {"application/json": {"schema": schema}},
    }


def _error_schemas() -> dict[str, Any]:
    problem_schema = Problem.model_json_schema(ref_template=_REF_TEMPLATE)
    definitions = problem_schema.pop("$defs")
    refusal = {
        "type": "object",
        "title": "Refusal",
        "required": ["error"],
        "properties": {"error": {"$ref": "#/components/schemas/Problem"}},
    }
    openai_error = refusal | {
        "title": "OpenAIRefusal",
        "properties": {"error": OpenAIErrorBody.model_json_schema()},
    }
    import_schema = NewImport.model_json_schema(ref_template=_REF_TEMPLATE)
    definitions |= import_schema.pop("$defs")
    schemas = {"Problem": problem_schema, "Refusal": refusal, "OpenAIRefusal": openai_error}
    return {**schemas, "NewImport": import_schema, **definitions}
