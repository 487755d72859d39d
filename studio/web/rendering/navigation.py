"""The pages of the menu, the command palette and the list of shortcuts."""

from dataclasses import dataclass
from itertools import chain
from typing import Literal

CountName = Literal["running", "waiting"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NavItem:
    """A page of the menu."""

    href: str
    label: str
    icon: str
    key: str
    """The key that opens the page, pressed after g."""
    title: str = ""
    """What lists of pages call it, where `label` is too short without its group."""
    child_paths: tuple[str, ...] = ()
    """Path prefixes of the pages below it."""
    count: CountName | None = None
    """The number of runs shown beside it."""

    @property
    def page_title(self) -> str:
        return self.title or self.label

    def is_active_for(self, path: str) -> bool:
        return path == self.href or path.startswith(self.child_paths)


@dataclass(frozen=True, slots=True)
class NavGroup:
    title: str
    items: tuple[NavItem, ...]


NAV_GROUPS = (
    NavGroup(
        "Build",
        (
            NavItem(
                href="/new",
                label="New",
                title="New experiment",
                icon="new",
                key="n",
            ),
            NavItem(
                href="/datasets",
                label="Data",
                title="Datasets",
                icon="datasets",
                key="d",
                child_paths=("/datasets/", "/feedback"),
            ),
            NavItem(
                href="/models", label="Models", icon="models", key="m", child_paths=("/models/",)
            ),
            NavItem(href="/playground", label="Playground", icon="playground", key="t"),
            NavItem(
                href="/graders",
                label="Graders",
                icon="graders",
                key="e",
                child_paths=("/graders/",),
            ),
            NavItem(
                href="/endpoints",
                label="Serve",
                icon="serve",
                key="v",
                child_paths=("/endpoints/",),
            ),
        ),
    ),
    NavGroup(
        "Track",
        (
            NavItem(
                href="/",
                label="Runs",
                icon="runs",
                key="r",
                child_paths=("/runs", "/experiments"),
                count="running",
            ),
            NavItem(
                href="/compare",
                label="Compare",
                icon="compare",
                key="c",
                child_paths=("/comparisons",),
            ),
            NavItem(
                href="/sweeps", label="Sweeps", icon="sweeps", key="w", child_paths=("/sweeps/",)
            ),
            NavItem(
                href="/reports/precision",
                label="Precision studies",
                icon="precision",
                key="p",
                child_paths=("/reports/",),
            ),
            NavItem(href="/numbers", label="Number formats", icon="numbers", key="f"),
        ),
    ),
    NavGroup(
        "System",
        (
            NavItem(href="/queue", label="Queue", icon="queue", key="q", count="waiting"),
            NavItem(
                href="/settings",
                label="Settings",
                icon="settings",
                key="s",
                child_paths=("/settings/",),
            ),
            NavItem(
                href="/help",
                label="Help",
                icon="help",
                key="h",
                child_paths=("/help/", "/failures", "/docs"),
            ),
        ),
    ),
)

NAV_ITEMS = tuple(chain.from_iterable(group.items for group in NAV_GROUPS))

DOCK_ORDER = ("/", "/new", "/datasets")
DOCK_ITEMS = tuple(next(item for item in NAV_ITEMS if item.href == href) for href in DOCK_ORDER)
"""The pages that small screens show outside the menu."""


@dataclass(frozen=True, slots=True)
class Shortcut:
    keys: tuple[str, ...]
    description: str


SHORTCUTS = (
    Shortcut(("Ctrl", "K"), "Search pages, runs, data, models and settings, or run a command"),
    Shortcut(("/",), "Search on this page"),
    Shortcut(("?",), "Show these shortcuts"),
    *(Shortcut(("g", place.key), f"Go to {place.page_title}") for place in NAV_ITEMS),
)
