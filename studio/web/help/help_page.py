"""Help pages: settings, precisions, failures, keyboard shortcuts, the tour and the API."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from studio.errors import NotFoundError
from studio.failure_codes import FAILURE_CODES
from studio.failure_codes import FailureCode as Failure
from studio.methods import METHODS
from studio.recipe.dotted_keys import nest
from studio.recipe.fields import (
    FieldReference,
    field_references,
    related_fields,
    section_intro,
    title_from_name,
)
from studio.recipe.precision import PRECISIONS, Precision
from studio.web.i18n import formatting
from studio.web.i18n.locale import gettext, ngettext
from studio.web.i18n.translation import translate
from studio.web.rendering.navigation import SHORTCUTS
from studio.web.rendering.render import block, page

_GROUP_TITLES = {"openai": "OpenAI", "chores": "Tasks"}
"""Titles of groups of calls that are not their tag with a capital."""

router = APIRouter(include_in_schema=False)


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
            tag = operation.get("tags", ["other"])[0]
            group = _GROUP_TITLES.get(tag, tag.capitalize())
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Chapter:
    """The settings of one section."""

    title: str
    description: str
    entries: Sequence[FieldReference]


@dataclass(frozen=True, slots=True, kw_only=True)
class HelpMatches:
    """The help entries that match a query; all of them for an empty one."""

    sections: Sequence[Chapter]
    precisions: Sequence[Precision]
    failures: Sequence[Failure]

    @property
    def count(self) -> int:
        knobs_found = sum(len(chapter.entries) for chapter in self.sections)
        return knobs_found + len(self.precisions) + len(self.failures)


@lru_cache(maxsize=1)
def recipe_fields() -> dict[str, FieldReference]:
    """Return every setting by its dotted name, in the order of the recipe.

    Of a setting that several methods have, it is that of the first.
    """
    entries: dict[str, FieldReference] = {}
    for method in METHODS.values():
        for entry in field_references(method.recipe):
            entries.setdefault(entry.name, entry)
    return entries


def search_help(query: str) -> HelpMatches:
    words = query.casefold().split()
    return HelpMatches(
        sections=_group_by_section(
            entry
            for entry in recipe_fields().values()
            if entry.matches(words) or _contains_all(words, entry.label, entry.help)
        ),
        precisions=[
            mode
            for mode in PRECISIONS.values()
            if _contains_all(words, mode.name, mode.title, mode.summary)
        ],
        failures=[
            kind
            for kind in FAILURE_CODES.values()
            if _contains_all(words, kind.code, kind.title, kind.meaning, kind.remedy)
        ],
    )


def usage_examples(entry: FieldReference) -> list[tuple[str, str]]:
    """Return titled examples that set it in a recipe, on the command line and over REST."""
    value = next((choice for choice in entry.choices if choice != entry.default), entry.default)
    value = "starter" if entry.required else value
    *parents, leaf = entry.name.split(".")
    lines = [f"{'  ' * depth}{name}:" for depth, name in enumerate(parents)]
    lines.append(f"{'  ' * len(parents)}{leaf}: {json.dumps(value)}")
    plain = value if isinstance(value, str) else json.dumps(value)
    return [
        ("In a recipe", "\n".join(lines)),
        ("On the command line", f"studio train recipe.yaml --set {entry.name}={plain}"),
        ("Over REST", json.dumps({"recipe": nest([(entry.name, value)])})),
    ]


def section_fields(entry: FieldReference) -> list[FieldReference]:
    """Return the other settings of the same section."""
    return [
        other
        for other in recipe_fields().values()
        if other.group == entry.group and other is not entry
    ]


def section_title(entry: FieldReference) -> str:
    """Return the title of the entry's section."""
    title = entry.section.model_config.get("title") or title_from_name(entry.group)
    return title or "What to train"


def _group_by_section(entries: Iterable[FieldReference]) -> list[Chapter]:
    by_title: dict[str, list[FieldReference]] = {}
    for entry in entries:
        by_title.setdefault(section_title(entry), []).append(entry)
    return [
        Chapter(
            title=title,
            description=section_intro(rows[0].section) if rows[0].group else "",
            entries=rows,
        )
        for title, rows in by_title.items()
    ]


def _contains_all(words: list[str], *texts: str) -> bool:
    """Whether all words are in the texts, in English or as translated on the page."""
    joined = " ".join((*texts, *map(translate, texts))).casefold()
    return all(word in joined for word in words)


def default_amount(value: object, unit: str) -> str:
    """Format a default with its unit, if it has one alone."""
    text = formatting.setting(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return text
    match unit:
        case "steps":
            return ngettext("%(steps)s step", "%(steps)s steps", round(value)) % {"steps": text}
        case "minutes":
            template = ngettext("%(minutes)s minute", "%(minutes)s minutes", round(value))
            return template % {"minutes": text}
        case "tokens" | "layers" | "newest":
            return f"{text} {gettext(unit)}"
        case _:
            return text


SearchText = Annotated[str, Query(max_length=200)]


@router.get("/help")
def index(request: Request, q: SearchText = "") -> Response:
    return page(
        request,
        "help/index.html",
        q=q,
        found=search_help(q),
        shortcuts=SHORTCUTS,
        default_amount=default_amount,
    )


@router.get("/help/shortcuts")
def shortcuts(request: Request) -> Response:
    """Return the content of the shortcuts dialog."""
    return block(request, "help/index.html", "shortcuts", shortcuts=SHORTCUTS)


@router.get("/help/tour")
def tour(request: Request) -> Response:
    return page(request, "help/tour.html")


@router.get("/help/knobs/{name}")
def recipe_field(request: Request, name: str) -> Response:
    entries = recipe_fields()
    entry = entries.get(name)
    if entry is None:
        raise NotFoundError(
            f"There is no setting {name[:200]}.", hint="Search the help for a similar name."
        )
    return page(
        request,
        "help/setting.html",
        entry=entry,
        chapter=section_title(entry),
        siblings=section_fields(entry),
        related=related_fields(entry, entries),
        examples=usage_examples(entry),
    )


@router.get("/failures")
def failures(request: Request) -> Response:
    """Explain the error codes of failed runs."""
    return page(request, "help/failures.html", kinds=FAILURE_CODES.values())


@router.get("/docs")
def api_docs(request: Request) -> Response:
    """Show every endpoint and schema of the OpenAPI document on one page."""
    reference = parse_document(request.app.openapi())
    address = str(request.base_url).rstrip("/")
    return page(request, "help/api.html", reference=reference, address=address)
