"""What to offer instead of a page that does not exist: the newest of its kind, or similar pages."""

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from fastapi import Request

from studio.db.session import read_session
from studio.errors import StudioError
from studio.services.search import palette_search
from studio.services.search.palette_search import HitKind
from studio.web.auth import template_permissions
from studio.web.rendering.navigation import NAV_ITEMS

MAX_OFFERED = 5

_KINDS: dict[str, tuple[HitKind, str]] = {
    "runs": ("run", "Newest runs"),
    "experiments": ("experiment", "Newest experiments"),
    "datasets": ("dataset", "Newest datasets"),
    "models": ("model", "Newest models"),
    "reports": ("study", "Newest precision studies"),
}
"""By the first part of a path: what its pages show, and a title for a list of them."""

_PREFIXES: dict[HitKind, str] = {"study": "/reports/precision/"}


@dataclass(frozen=True, slots=True)
class Offer:
    label: str
    href: str
    about: str = ""


@dataclass(frozen=True, slots=True)
class Offers:
    title: str
    items: Sequence[Offer]


def find_offers(request: Request) -> Offers | None:
    """Return what someone may have looked for, or None if the caller may not know of it."""
    path = request.scope["path"]
    if not template_permissions.may("GET", "/"):
        return None
    first = path.strip("/").partition("/")[0].casefold()
    match = get_close_matches(first, _KINDS, n=1)
    newest = _newest(request, match[0]) if match else None
    return newest or _similar_pages(first)


def _newest(request: Request, name: str) -> Offers | None:
    kind, title = _KINDS[name]
    try:
        with read_session(request.app.state.engine) as db:
            hits = palette_search.list_newest(db, kind, limit=MAX_OFFERED)
    except StudioError:
        return None
    prefix = _PREFIXES.get(kind, f"/{name}/")
    offers = [Offer(hit.name, f"{prefix}{hit.id}", hit.about) for hit in hits]
    return Offers(title, offers) if offers else None


def _similar_pages(name: str) -> Offers | None:
    pages = {item.href.rpartition("/")[2]: item for item in NAV_ITEMS if item.href != "/"}
    names = get_close_matches(name, pages, n=MAX_OFFERED, cutoff=0.7)
    return (
        Offers("Did you mean", [Offer(pages[key].page_title, pages[key].href) for key in names])
        if names
        else None
    )
