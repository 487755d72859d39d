"""What the command palette offers for some words: pages, actions, what people made, settings."""

from collections.abc import Iterator
from dataclasses import dataclass

from sqlmodel import Session

from studio.services.search import global_search
from studio.web.auth import template_permissions
from studio.web.help import help_index
from studio.web.i18n.translation import translate
from studio.web.rendering.navigation import NAV_ITEMS

MAX_PER_GROUP = 6
"""How many of one kind are shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PaletteItem:
    """One line of the palette."""

    label: str
    about: str = ""
    href: str = ""
    """Where it leads; an action that leads nowhere is done in the page."""
    does: str = ""
    """The mark of what a script does: the name of a data attribute."""
    required_route: str = ""
    """The call that it is for, where that is another than to go there."""

    @property
    def is_allowed(self) -> bool:
        method, _, address = (self.required_route or f"GET {self.href}").partition(" ")
        return not address or template_permissions.may(method, address)


@dataclass(frozen=True, slots=True)
class PaletteGroup:
    title: str
    offers: list[PaletteItem]


_ACTIONS = (
    PaletteItem(label="New experiment", href="/new"),
    PaletteItem(
        label="Start a quick try", href="/new?preset=quick", about="the starter model and data"
    ),
    PaletteItem(label="Bring a data set", href="/datasets", required_route="POST /datasets"),
    PaletteItem(label="Compare runs", href="/compare"),
    PaletteItem(label="Change the theme", does="theme-toggle", about="light or dark"),
    PaletteItem(label="Show the shortcuts", does="shortcuts", about="?"),
    PaletteItem(label="Take the tour", does="tour-start"),
)

_SEARCH_KINDS: dict[global_search.HitKind, tuple[str, str]] = {
    "run": ("Runs", "/runs/"),
    "experiment": ("Experiments", "/experiments/"),
    "study": ("Precision studies", "/reports/precision/"),
    "dataset": ("Data sets", "/datasets/"),
    "model": ("Models", "/models/"),
}


def find_items(db: Session, query: str) -> list[PaletteGroup]:
    """Return what fits the words, in groups; empty groups are left out."""
    words = query.casefold().split()
    made: dict[str, list[PaletteItem]] = {}
    for found in global_search.search(db, query.strip(), limit=MAX_PER_GROUP):
        title, home = _SEARCH_KINDS[found.kind]
        about = ", ".join(filter(None, (found.about, translate(found.status))))
        offer = PaletteItem(label=found.name, about=about, href=f"{home}{found.id}")
        made.setdefault(title, []).append(offer)
    pages = [PaletteItem(label=one.label, href=one.href, about=f"g {one.key}") for one in NAV_ITEMS]
    groups = (
        ("Do", _matching_items(_ACTIONS, words)),
        ("Go to", _matching_items(pages, words)),
        *made.items(),
        ("Settings of a recipe", list(_recipe_field_items(words))[:MAX_PER_GROUP]),
    )
    return [PaletteGroup(title, found) for title, found in groups if found]


def _matching_items(
    offered: tuple[PaletteItem, ...] | list[PaletteItem], words: list[str]
) -> list[PaletteItem]:
    return [one for one in offered if one.is_allowed and _label_matches(one.label, words)]


def _label_matches(label: str, words: list[str]) -> bool:
    """Whether words are in a label, as it is in English or on the page."""
    return all(word in f"{label} {translate(label)}".casefold() for word in words)


def _recipe_field_items(words: list[str]) -> Iterator[PaletteItem]:
    for entry in help_index.recipe_fields().values() if words else ():
        if entry.matches(words) or _label_matches(entry.label, words):
            href = f"/help/knobs/{entry.name}"
            yield PaletteItem(label=entry.label, about=entry.name, href=href)
