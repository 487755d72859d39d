"""What the command palette offers for some words: pages, actions, what people made, settings."""

from collections.abc import Iterator
from dataclasses import dataclass

from sqlmodel import Session

from studio.services.search import global_search
from studio.web.auth import template_permissions
from studio.web.help import help_index
from studio.web.i18n.translation import said
from studio.web.rendering.navigation import PLACES

LIMIT = 6
"""How many of one kind are shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """One line of the palette."""

    label: str
    about: str = ""
    href: str = ""
    """Where it leads; an action that leads nowhere is done in the page."""
    does: str = ""
    """The mark of what a script does: the name of a data attribute."""
    asks: str = ""
    """The call that it is for, where that is another than to go there."""

    @property
    def is_allowed(self) -> bool:
        method, _, address = (self.asks or f"GET {self.href}").partition(" ")
        return not address or template_permissions.may(method, address)


@dataclass(frozen=True, slots=True)
class Group:
    title: str
    offers: list[Offer]


_ACTIONS = (
    Offer(label="New experiment", href="/new"),
    Offer(label="Start a quick try", href="/new?preset=quick", about="the starter model and data"),
    Offer(label="Bring a data set", href="/datasets", asks="POST /datasets"),
    Offer(label="Compare runs", href="/compare"),
    Offer(label="Change the theme", does="theme-toggle", about="light or dark"),
    Offer(label="Show the shortcuts", does="shortcuts", about="?"),
    Offer(label="Take the tour", does="tour-start"),
)

_KINDS: dict[global_search.HitKind, tuple[str, str]] = {
    "run": ("Runs", "/runs/"),
    "experiment": ("Experiments", "/experiments/"),
    "study": ("Precision studies", "/reports/precision/"),
    "dataset": ("Data sets", "/datasets/"),
    "model": ("Models", "/models/"),
}


def offers(db: Session, query: str) -> list[Group]:
    """Return what fits the words, in groups; empty groups are left out."""
    words = query.casefold().split()
    made: dict[str, list[Offer]] = {}
    for found in global_search.search(db, query.strip(), limit=LIMIT):
        title, home = _KINDS[found.kind]
        about = ", ".join(filter(None, (found.about, said(found.status))))
        offer = Offer(label=found.name, about=about, href=f"{home}{found.id}")
        made.setdefault(title, []).append(offer)
    pages = [Offer(label=one.label, href=one.href, about=f"g {one.key}") for one in PLACES]
    groups = (
        ("Do", _fitting(_ACTIONS, words)),
        ("Go to", _fitting(pages, words)),
        *made.items(),
        ("Settings of a recipe", list(_knobs(words))[:LIMIT]),
    )
    return [Group(title, found) for title, found in groups if found]


def _fitting(offered: tuple[Offer, ...] | list[Offer], words: list[str]) -> list[Offer]:
    return [one for one in offered if one.is_allowed and _is_called(one.label, words)]


def _is_called(label: str, words: list[str]) -> bool:
    """Whether words are in a label, as it is in English or on the page."""
    return all(word in f"{label} {said(label)}".casefold() for word in words)


def _knobs(words: list[str]) -> Iterator[Offer]:
    for entry in help_index.knobs().values() if words else ():
        if entry.matches(words) or _is_called(entry.label, words):
            href = f"/help/knobs/{entry.name}"
            yield Offer(label=entry.label, about=entry.name, href=href)
