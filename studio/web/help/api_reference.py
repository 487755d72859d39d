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

    words: str
    shape: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiField:
    name: str
    place: str
    """path, query, header, form or body; empty in a schema."""
    kind: ValueType
    is_required: bool
    about: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    method: str
    path: str
    title: str
    about: str
    takes: tuple[ApiField, ...]
    answers: tuple[tuple[str, ValueType], ...]
    """Successful responses, by status."""

    @property
    def anchor(self) -> str:
        return f"{self.method.lower()}{self.path}".translate(_ANCHOR_CHARS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    name: str
    about: str
    fields: tuple[ApiField, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiReference:
    groups: Mapping[str, tuple[Endpoint, ...]]
    """Endpoints by tag."""
    shapes: tuple[Schema, ...]


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
        groups={group: tuple(endpoints) for group, endpoints in by_group.items()},
        shapes=tuple(_schema(name, shapes[name]) for name in sorted(shapes)),
    )


def _endpoint(document: Document, method: str, path: str, operation: Mapping[str, Any]) -> Endpoint:
    return Endpoint(
        method=method.upper(),
        path=path,
        title=operation.get("summary", ""),
        about=operation.get("description", ""),
        takes=(*_parameters(document, operation), *_body(document, operation)),
        answers=tuple(
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
            place=parameter["in"],
            kind=_value_type(parameter["schema"]),
            is_required=parameter.get("required", False),
            about=parameter.get("description", ""),
        )


def _body(document: Document, operation: Mapping[str, Any]) -> Iterator[ApiField]:
    for media, content in operation.get("requestBody", {}).get("content", {}).items():
        schema = content["schema"]
        name = schema.get("$ref", "").removeprefix(_SCHEMAS)
        body_schema = document["components"]["schemas"][name] if name else schema
        yield from _fields(body_schema, "form" if media.startswith("multipart/") else "body")


def _schema(name: str, schema: Mapping[str, Any]) -> Schema:
    return Schema(name=name, about=schema.get("description", ""), fields=tuple(_fields(schema, "")))


def _fields(schema: Mapping[str, Any], place: str) -> Iterator[ApiField]:
    required = set(schema.get("required", ()))
    for name, field_schema in schema.get("properties", {}).items():
        yield ApiField(
            name=name,
            place=place,
            kind=_value_type(field_schema),
            is_required=name in required,
            about=field_schema.get("description", ""),
        )


def _response_type(response: Mapping[str, Any]) -> ValueType:
    for media, content in response.get("content", {}).items():
        if media == "application/json":
            return _value_type(content.get("schema", {}))
        return ValueType(words=media)
    return ValueType(words="nothing")


def _value_type(schema: Mapping[str, Any]) -> ValueType:
    """Describe a schema in a few words; a named schema by its name."""
    if "$ref" in schema:
        name = schema["$ref"].removeprefix(_SCHEMAS)
        return ValueType(words=name, shape=name)
    choices = schema.get("anyOf") or schema.get("oneOf")
    if choices:
        kinds = [_value_type(choice) for choice in choices]
        shape = next((kind.shape for kind in kinds if kind.shape), "")
        return ValueType(
            words=" or ".join(dict.fromkeys(kind.words for kind in kinds)), shape=shape
        )
    if "enum" in schema or "const" in schema:
        values = schema.get("enum", [schema.get("const")])
        return ValueType(words=", ".join(map(str, values)))
    if schema.get("type") == "array":
        item_type = _value_type(schema.get("items", {}))
        return ValueType(words=f"list of {item_type.words}", shape=item_type.shape)
    return ValueType(words=str(schema.get("format") or schema.get("type", "anything")))
