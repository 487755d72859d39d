"""What to offer instead of a page that does not exist: similar names, or the newest of its kind."""

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from fastapi import Request
from sqlmodel import Session

from studio.db.session import read_session
from studio.errors import StudioError
from studio.services.search import palette_search, query_fields
from studio.services.search.palette_search import HitKind, SearchHit
from studio.web.auth import template_permissions
from studio.web.i18n.locale import gettext
from studio.web.rendering.navigation import NAV_ITEMS

MAX_OFFERED = 5
_MAX_DIGITS = 15
"""Longer numbers are the id of nothing."""


@dataclass(frozen=True, slots=True)
class Offer:
    label: str
    href: str
    about: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offers:
    title: str = ""
    items: Sequence[Offer] = ()
    note: str = ""
    """What is known of the missing page; empty if nothing."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """Pages that each show a row of one kind."""

    kind: HitKind
    title: str
    """Of a list of the newest ones."""
    prefix: str
    """The path of a page without the id."""


_KINDS = {
    "runs": _Kind("run", "Newest runs", "/runs/"),
    "experiments": _Kind("experiment", "Newest experiments", "/experiments/"),
    "sweeps": _Kind("sweep", "Newest sweeps", "/sweeps/"),
    "reports": _Kind("study", "Newest precision studies", "/reports/precision/"),
    "comparisons": _Kind("comparison", "Newest saved comparisons", "/comparisons/"),
    "datasets": _Kind("dataset", "Newest datasets", "/datasets/"),
    "models": _Kind("model", "Newest models", "/models/"),
}
"""By the first part of a path."""

_SETTING_PREFIX = "/help/knobs/"


def find_offers(request: Request) -> Offers | None:
    """Return what someone may have looked for, or None if the caller may not know of it."""
    path = request.scope["path"]
    if not template_permissions.may("GET", "/"):
        return None
    if path.startswith(_SETTING_PREFIX):
        return _similar_settings(path.removeprefix(_SETTING_PREFIX))
    first = path.strip("/").partition("/")[0].casefold()
    match = get_close_matches(first, _KINDS, n=1)
    offers = _offers_of_kind(request, _KINDS[match[0]]) if match else None
    return offers or _similar_pages(first)


def _offers_of_kind(request: Request, pages: _Kind) -> Offers | None:
    path = request.scope["path"]
    rest = path.removeprefix(pages.prefix) if path.startswith(pages.prefix) else ""
    name = rest.partition("/")[0]
    try:
        with read_session(request.app.state.engine) as db:
            return _list_rows(db, pages, name)
    except StudioError:
        return None


def _list_rows(db: Session, pages: _Kind, name: str) -> Offers | None:
    number = int(name) if name.isdecimal() and len(name) <= _MAX_DIGITS else None
    if number is not None and palette_search.exists(db, pages.kind, number):
        return None  # Something of this row is missing, not the row.
    if name and number is None:
        similar = palette_search.list_similar(db, pages.kind, name, limit=MAX_OFFERED)
        if similar:
            return Offers(title="Similar names", items=_to_offers(similar, pages))
    newest = palette_search.list_newest(db, pages.kind, limit=MAX_OFFERED)
    return Offers(
        title=pages.title if newest else "",
        items=_to_offers(newest, pages),
        note=_what_became_of(number, newest) if number is not None else "",
    )


def _what_became_of(number: int, newest: Sequence[SearchHit]) -> str:
    """Say why no row has this number: ids only grow, and none is used twice."""
    if not newest:
        return gettext("There are none yet.")
    if number < newest[0].id:
        return gettext("It was deleted.")
    return gettext("The newest is number %(id)s.") % {"id": newest[0].id}


def _to_offers(hits: Sequence[SearchHit], pages: _Kind) -> list[Offer]:
    return [Offer(hit.name, f"{pages.prefix}{hit.id}", hit.about) for hit in hits]


def _similar_settings(name: str) -> Offers | None:
    settings = query_fields.recipe_fields()
    last_parts = {full.rpartition(".")[2]: full for full in settings}
    sought = name.rpartition(".")[2]
    names = [last_parts[part] for part in get_close_matches(sought, last_parts, n=MAX_OFFERED)]
    items = [
        Offer(gettext(settings[full].title), f"{_SETTING_PREFIX}{full}", full) for full in names
    ]
    return Offers(title="Similar settings", items=items) if items else None


def _similar_pages(name: str) -> Offers | None:
    pages = {item.href.rpartition("/")[2]: item for item in NAV_ITEMS if item.href != "/"}
    names = get_close_matches(name, pages, n=MAX_OFFERED, cutoff=0.7)
    items = [Offer(gettext(pages[key].page_title), pages[key].href) for key in names]
    return Offers(title="Did you mean", items=items) if items else None
