"""The OpenAPI document: what FastAPI sees of the routes, and what holds for all, told once."""

from typing import Any

from fastapi.openapi.models import ParameterInType
from pydantic import BaseModel

from studio.schemas.field_docs import FieldDocs
from studio.web.api.conventions.api_route import NEVER_STORED
from studio.web.api.datasets.new_dataset import NewImport
from studio.web.http import openai_errors
from studio.web.http.idempotency import REPLAY_HEADER

_ERROR_DESCRIPTIONS = {
    "400": "The body cannot be read.",
    "401": "This studio does not know who asks.",
    "403": "Another site, or somebody who may not, asks for it.",
    "404": "There is nothing of that name.",
    "409": "The state of it forbids this.",
    "412": "It was changed by somebody else since it was read.",
    "413": "This is more than is taken here.",
    "421": "This studio has another address.",
    "422": "A value cannot be accepted; `errors` has each field.",
    "500": "A bug in the studio; nothing was changed.",
    "503": "Something is missing or busy now. Try again after `Retry-After`.",
    "507": "There is no room left.",
}
_COMMON_STATUSES = ("401", "403", "404", "409", "421", "422", "500", "503")
_WRITE_STATUSES = ("400", "413", "507")

_IDEMPOTENCY_KEY = {
    "name": "Idempotency-Key",
    "in": ParameterInType.header.value,
    "required": False,
    "schema": {"type": "string", "minLength": 1, "maxLength": 255},
    "description": "A name of your own for this request. Sent again with the same key, it is not "
    f"done again: the answer is that of the first time, with `{REPLAY_HEADER}: true`. A key "
    "is kept for a day; with another body it is refused.",
}
_ETAG = {"ETag": {"schema": {"type": "string"}, "description": "Send it as `If-Match`."}}
_CREATED_STATUSES = {"201", "202"}
ERROR, OPENAI = "Error", "OpenAIError"
_ERROR_SCHEMAS = {ERROR: "Refusal", OPENAI: "OpenAIRefusal"}
"""The shapes of errors: ours, and that of OpenAI's interface."""

_REF_TEMPLATE = "#/components/schemas/{model}"


class OpenAIErrorBody(BaseModel):
    """Why OpenAI's interface refused a request."""

    message: str
    type: str
    param: str | None
    code: str | None


class FieldProblem(FieldDocs, BaseModel):
    """What is wrong with one field."""

    param: str
    """Its dotted name."""
    message: str


class Problem(FieldDocs, BaseModel):
    """Why a request was refused."""

    code: str
    """Does not change from one version to the next."""
    message: str
    """What happened, in a sentence."""
    hint: str
    """What to do about it, or nothing."""
    param: str | None
    """The dotted name of the field at fault."""
    errors: list[FieldProblem] | None = None
    """Every field at fault, where fields are."""


def add_shared_parts(document: dict[str, Any]) -> dict[str, Any]:
    """Add to a document what every call may answer and take."""
    parts = document["components"]
    parts["schemas"] |= _error_schemas()
    parts["schemas"].pop("HTTPValidationError", None)
    parts["schemas"].pop("ValidationError", None)
    parts["responses"] = {
        f"{kind}{status}": _error_response(kind, status)
        for kind in _ERROR_SCHEMAS
        for status in _ERROR_DESCRIPTIONS
    }
    parts["parameters"] = {"IdempotencyKey": _IDEMPOTENCY_KEY}
    for address, path in document["paths"].items():
        for method, operation in path.items():
            _complete_operation(
                method, operation, OPENAI if openai_errors.is_openai_path(address) else ERROR
            )
        if "if-match" in _parameter_names(path.get("patch", {})):
            path["patch"]["responses"]["412"] = {"$ref": "#/components/responses/Error412"}
            for method in path.keys() & {"get", "patch"}:
                path[method]["responses"]["200"]["headers"] = _ETAG
    return document


def _parameter_names(operation: dict[str, Any]) -> set[str]:
    return {one.get("name", "") for one in operation.get("parameters", ())}


def _complete_operation(method: str, operation: dict[str, Any], kind: str) -> None:
    answers = operation["responses"]
    for status in (
        *_COMMON_STATUSES,
        *(() if method == "get" and kind is ERROR else _WRITE_STATUSES),
    ):
        answers[status] = {"$ref": f"#/components/responses/{kind}{status}"}
    is_kept = not operation.keys() & NEVER_STORED
    if method == "post" and answers.keys() & _CREATED_STATUSES and is_kept:
        reference = {"$ref": "#/components/parameters/IdempotencyKey"}
        operation["parameters"] = [*operation.get("parameters", ()), reference]


def _error_response(kind: str, status: str) -> dict[str, Any]:
    schema = {"$ref": f"#/components/schemas/{_ERROR_SCHEMAS[kind]}"}
    return {
        "description": _ERROR_DESCRIPTIONS[status],
        "content": {"application/json": {"schema": schema}},
    }


def _error_schemas() -> dict[str, Any]:
    whole = Problem.model_json_schema(ref_template=_REF_TEMPLATE)
    inner = whole.pop("$defs")
    refusal = {
        "type": "object",
        "title": "Refusal",
        "required": ["error"],
        "properties": {"error": {"$ref": "#/components/schemas/Problem"}},
    }
    complaint = refusal | {
        "title": "OpenAIRefusal",
        "properties": {"error": OpenAIErrorBody.model_json_schema()},
    }
    brought = NewImport.model_json_schema(ref_template=_REF_TEMPLATE)
    inner |= brought.pop("$defs")
    told = {"Problem": whole, "Refusal": refusal, "OpenAIRefusal": complaint}
    return {**told, "NewImport": brought, **inner}
