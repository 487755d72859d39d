"""Search from any page: the command palette, and completions for the search box of the runs."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from sqlmodel import Session

from studio.services.search import palette_search
from studio.web.auth import template_permissions
from studio.web.help import help_page
from studio.web.http.deps import DB
from studio.web.i18n.translation import translate
from studio.web.rendering.navigation import NAV_ITEMS
from studio.web.rendering.render import page, wants_fragment

router = APIRouter(include_in_schema=False)

MAX_PER_GROUP = 6
"""Most items of one kind that are shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PaletteItem:
    """One line of the palette."""

    label: str
    description: str = ""
    href: str = ""
    """The URL it opens; empty for an action of a script in the page."""
    action: str = ""
    """The data attribute that triggers a script."""
    required_route: str = ""
    """The route whose permission it needs, if that is not a GET of `href`."""

    @property
    def is_allowed(self) -> bool:
        method, _, address = (self.required_route or f"GET {self.href}").partition(" ")
        return not address or template_permissions.may(method, address)


@dataclass(frozen=True, slots=True)
class PaletteGroup:
    title: str
    entries: list[PaletteItem]


_ACTIONS = (
    PaletteItem(label="New experiment", href="/new"),
    PaletteItem(
        label="Quick start", href="/new?preset=quick", description="the starter model and data"
    ),
    PaletteItem(label="Add a dataset", href="/datasets", required_route="POST /datasets"),
    PaletteItem(label="Compare runs", href="/compare"),
    PaletteItem(label="Change theme", action="theme-toggle", description="light or dark"),
    PaletteItem(label="Show keyboard shortcuts", action="shortcuts", description="?"),
    PaletteItem(label="Take the tour", action="tour-start"),
)

_SEARCH_KINDS: dict[palette_search.HitKind, tuple[str, str]] = {
    "run": ("Runs", "/runs/"),
    "experiment": ("Experiments", "/experiments/"),
    "sweep": ("Sweeps", "/sweeps/"),
    "study": ("Precision studies", "/reports/precision/"),
    "comparison": ("Saved comparisons", "/comparisons/"),
    "dataset": ("Datasets", "/datasets/"),
    "model": ("Models", "/models/"),
}


def find_items(db: Session, query: str) -> list[PaletteGroup]:
    """Return what matches the query, in groups; empty groups are left out."""
    words = query.casefold().split()
    by_title: dict[str, list[PaletteItem]] = {}
    for result in palette_search.search(db, query.strip(), limit=MAX_PER_GROUP):
        title, url_prefix = _SEARCH_KINDS[result.kind]
        details = ", ".join(filter(None, (result.about, translate(result.status))))
        item = PaletteItem(label=result.name, description=details, href=f"{url_prefix}{result.id}")
        by_title.setdefault(title, []).append(item)
    pages = [
        PaletteItem(label=nav_item.page_title, href=nav_item.href, description=f"g {nav_item.key}")
        for nav_item in NAV_ITEMS
    ]
    groups = (
        ("Actions", _matching_items(_ACTIONS, words)),
        ("Go to", _matching_items(pages, words)),
        *by_title.items(),
        ("Recipe settings", list(_recipe_field_items(words))[:MAX_PER_GROUP]),
    )
    return [PaletteGroup(title, result) for title, result in groups if result]


def _matching_items(
    items: tuple[PaletteItem, ...] | list[PaletteItem], words: list[str]
) -> list[PaletteItem]:
    return [item for item in items if item.is_allowed and _label_matches(item.label, words)]


def _label_matches(label: str, words: list[str]) -> bool:
    """Whether all words are in a label, in English or as translated on the page."""
    return all(word in f"{label} {translate(label)}".casefold() for word in words)


def _recipe_field_items(words: list[str]) -> Iterator[PaletteItem]:
    for entry in help_page.recipe_fields().values() if words else ():
        if entry.matches(words) or _label_matches(entry.label, words):
            href = f"/help/knobs/{entry.name}"
            yield PaletteItem(label=entry.label, description=entry.name, href=href)


@router.get("/palette")
def show_palette(
    request: Request, db: DB, q: Annotated[str, Query(max_length=200)] = ""
) -> Response:
    template = "search/palette_items.html" if wants_fragment(request) else "search/palette.html"
    return page(request, template, q=q, groups=find_items(db, q))


@router.get("/completions")
def show_completions(
    request: Request,
    db: DB,
    q: Annotated[str, Query(max_length=1000)] = "",
    at: Annotated[int, Query(ge=0, le=1000)] = 1000,
) -> Response:
    return page(request, "search/completions.html", found=palette_search.complete(db, q, at))
