"""The content of the API reference page: the OpenAPI document, grouped and in plain words."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_SCHEMAS = "#/components/schemas/"
_PARAMETERS = "#/components/parameters/"

Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueType:
    """The type of a value, in words, and the schema that they name, if any."""

    text: str
    schema: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiField:
    name: str
    location: str
    """path, query, header, form or body; empty in a schema."""
    type: ValueType
    is_required: bool
    description: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    method: str
    path: str
    title: str
    description: str
    parameters: tuple[ApiField, ...]
    responses: tuple[tuple[str, ValueType], ...]
    """Successful responses, by status."""

    @property
    def anchor(self) -> str:
        return f"{self.method.lower()}{self.path}".translate(_ANCHOR_CHARS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    name: str
    description: str
    fields: tuple[ApiField, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiReference:
    endpoints_by_tag: Mapping[str, tuple[Endpoint, ...]]
    """Endpoints by tag."""
    schemas: tuple[Schema, ...]


_ANCHOR_CHARS = str.maketrans({"/": "-", "{": "", "}": "", ":": "-"})


def parse_document(document: Document) -> ApiReference:
    """Return the endpoints and schemas of an OpenAPI document."""
    by_group: dict[str, list[Endpoint]] = {}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            group = operation.get("tags", ["other"])[0].capitalize()
            by_group.setdefault(group, []).append(_endpoint(document, method, path, operation))
    shapes = document["components"]["schemas"]
    return ApiReference(
        endpoints_by_tag={group: tuple(endpoints) for group, endpoints in by_group.items()},
        schemas=tuple(_schema(name, shapes[name]) for name in sorted(shapes)),
    )


def _endpoint(document: Document, method: str, path: str, operation: Mapping[str, Any]) -> Endpoint:
    return Endpoint(
        method=method.upper(),
        path=path,
        title=operation.get("summary", ""),
        description=operation.get("description", ""),
        parameters=(*_parameters(document, operation), *_body(document, operation)),
        responses=tuple(
            (status, _response_type(response))
            for status, response in operation["responses"].items()
            if status.startswith("2")
        ),
    )


def _parameters(document: Document, operation: Mapping[str, Any]) -> Iterator[ApiField]:
    for entry in operation.get("parameters", ()):
        name = entry.get("$ref", "").removeprefix(_PARAMETERS)
        parameter = document["components"]["parameters"][name] if name else entry
        yield ApiField(
            name=parameter["name"],
            location=parameter["in"],
            type=_value_type(parameter["schema"]),
            is_required=parameter.get("required", False),
            description=parameter.get("description", ""),
        )


def _body(document: Document, operation: Mapping[str, Any]) -> Iterator[ApiField]:
    for media, content in operation.get("requestBody", {}).get("content", {}).items():
        schema = content["schema"]
        name = schema.get("$ref", "").removeprefix(_SCHEMAS)
        body_schema = document["components"]["schemas"][name] if name else schema
        yield from _fields(body_schema, "form" if media.startswith("multipart/") else "body")


def _schema(name: str, schema: Mapping[str, Any]) -> Schema:
    return Schema(
        name=name, description=schema.get("description", ""), fields=tuple(_fields(schema, ""))
    )


def _fields(schema: Mapping[str, Any], place: str) -> Iterator[ApiField]:
    required = set(schema.get("required", ()))
    for name, field_schema in schema.get("properties", {}).items():
        yield ApiField(
            name=name,
            location=place,
            type=_value_type(field_schema),
            is_required=name in required,
            description=field_schema.get("description", ""),
        )


def _response_type(response: Mapping[str, Any]) -> ValueType:
    for media, content in response.get("content", {}).items():
        if media == "application/json":
            return _value_type(content.get("schema", {}))
        return ValueType(text=media)
    return ValueType(text="nothing")


def _value_type(schema: Mapping[str, Any]) -> ValueType:
    """Describe a schema in a few words; a named schema by its name."""
    if "$ref" in schema:
        name = schema["$ref"].removeprefix(_SCHEMAS)
        return ValueType(text=name, schema=name)
    choices = schema.get("anyOf") or schema.get("oneOf")
    if choices:
        kinds = [_value_type(choice) for choice in choices]
        shape = next((kind.schema for kind in kinds if kind.schema), "")
        return ValueType(text=" or ".join(dict.fromkeys(kind.text for kind in kinds)), schema=shape)
    if "enum" in schema or "const" in schema:
        values = schema.get("enum", [schema.get("const")])
        return ValueType(text=", ".join(map(str, values)))
    if schema.get("type") == "array":
        item_type = _value_type(schema.get("items", {}))
        return ValueType(text=f"list of {item_type.text}", schema=item_type.schema)
    return ValueType(text=str(schema.get("format") or schema.get("type", "anything")))
