"""Help pages: settings, precisions, failures, keyboard shortcuts, the tour and the API."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated

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
from studio.web.help import api_reference
from studio.web.i18n.translation import translate
from studio.web.rendering.navigation import SHORTCUTS
from studio.web.rendering.render import block, page

router = APIRouter(include_in_schema=False)


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
    """Return every setting by its dotted name, in the order of the recipe."""
    entries = (entry for method in METHODS.values() for entry in field_references(method.recipe))
    return {entry.name: entry for entry in entries}


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


SearchText = Annotated[str, Query(max_length=200)]


@router.get("/help")
def index(request: Request, q: SearchText = "") -> Response:
    return page(request, "help/index.html", q=q, found=search_help(q), shortcuts=SHORTCUTS)


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
    reference = api_reference.parse_document(request.app.openapi())
    address = str(request.base_url).rstrip("/")
    return page(request, "help/api.html", reference=reference, address=address)
