"""The API as a page tells it: its document, put into the order and the words of people."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_SHAPES = "#/components/schemas/"
_PARAMETERS = "#/components/parameters/"

Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What a value is: words, and the shape they name, if there is one."""

    words: str
    shape: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    name: str
    place: str
    """path, query, header, or body; nothing in a shape."""
    kind: Kind
    is_required: bool
    about: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    method: str
    path: str
    title: str
    about: str
    takes: tuple[Field, ...]
    answers: tuple[tuple[str, Kind], ...]
    """What it answers when all is well, by status."""

    @property
    def anchor(self) -> str:
        return f"{self.method.lower()}{self.path}".translate(_PLAIN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    name: str
    about: str
    fields: tuple[Field, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    groups: Mapping[str, tuple[Call, ...]]
    """By what they are about."""
    shapes: tuple[Shape, ...]


_PLAIN = str.maketrans({"/": "-", "{": "", "}": "", ":": "-"})


def read(document: Document) -> Reference:
    """Return what an OpenAPI document says of calls and shapes."""
    calls: dict[str, list[Call]] = {}
    for path, there in document["paths"].items():
        for method, operation in there.items():
            group = operation.get("tags", ["other"])[0].capitalize()
            calls.setdefault(group, []).append(_call(document, method, path, operation))
    shapes = document["components"]["schemas"]
    return Reference(
        groups={group: tuple(made) for group, made in calls.items()},
        shapes=tuple(_shape(name, shapes[name]) for name in sorted(shapes)),
    )


def _call(document: Document, method: str, path: str, operation: Mapping[str, Any]) -> Call:
    return Call(
        method=method.upper(),
        path=path,
        title=operation.get("summary", ""),
        about=operation.get("description", ""),
        takes=(*_parameters(document, operation), *_body(document, operation)),
        answers=tuple(
            (status, _content(answer))
            for status, answer in operation["responses"].items()
            if status.startswith("2")
        ),
    )


def _parameters(document: Document, operation: Mapping[str, Any]) -> Iterator[Field]:
    for written in operation.get("parameters", ()):
        name = written.get("$ref", "").removeprefix(_PARAMETERS)
        one = document["components"]["parameters"][name] if name else written
        yield Field(
            name=one["name"],
            place=one["in"],
            kind=_kind(one["schema"]),
            is_required=one.get("required", False),
            about=one.get("description", ""),
        )


def _body(document: Document, operation: Mapping[str, Any]) -> Iterator[Field]:
    for media, content in operation.get("requestBody", {}).get("content", {}).items():
        schema = content["schema"]
        name = schema.get("$ref", "").removeprefix(_SHAPES)
        whole = document["components"]["schemas"][name] if name else schema
        yield from _fields(whole, "form" if media.startswith("multipart/") else "body")


def _shape(name: str, schema: Mapping[str, Any]) -> Shape:
    return Shape(name=name, about=schema.get("description", ""), fields=tuple(_fields(schema, "")))


def _fields(schema: Mapping[str, Any], place: str) -> Iterator[Field]:
    required = set(schema.get("required", ()))
    for name, one in schema.get("properties", {}).items():
        yield Field(
            name=name,
            place=place,
            kind=_kind(one),
            is_required=name in required,
            about=one.get("description", ""),
        )


def _content(answer: Mapping[str, Any]) -> Kind:
    for media, content in answer.get("content", {}).items():
        if media == "application/json":
            return _kind(content.get("schema", {}))
        return Kind(words=media)
    return Kind(words="nothing")


def _kind(schema: Mapping[str, Any]) -> Kind:
    """Put a schema into a few words; of what is named, its name."""
    if "$ref" in schema:
        name = schema["$ref"].removeprefix(_SHAPES)
        return Kind(words=name, shape=name)
    choices = schema.get("anyOf") or schema.get("oneOf")
    if choices:
        kinds = [_kind(one) for one in choices]
        shape = next((kind.shape for kind in kinds if kind.shape), "")
        return Kind(words=" or ".join(dict.fromkeys(kind.words for kind in kinds)), shape=shape)
    if "enum" in schema or "const" in schema:
        values = schema.get("enum", [schema.get("const")])
        return Kind(words=", ".join(map(str, values)))
    if schema.get("type") == "array":
        inner = _kind(schema.get("items", {}))
        return Kind(words=f"list of {inner.words}", shape=inner.shape)
    return Kind(words=str(schema.get("format") or schema.get("type", "anything")))
