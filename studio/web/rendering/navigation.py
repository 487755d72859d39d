"""The pages of the menu, the command palette and the list of shortcuts."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class NavItem:
    """A page of the menu."""

    href: str
    label: str
    icon: str
    key: str
    """The key that opens the page, pressed after g."""
    child_paths: tuple[str, ...] = ()
    """Path prefixes of the pages below it."""

    def is_active_for(self, path: str) -> bool:
        return path == self.href or path.startswith(self.child_paths)


NAV_ITEMS = (
    NavItem(href="/", label="Runs", icon="runs", key="r", child_paths=("/runs", "/experiments")),
    NavItem(href="/new", label="New experiment", icon="new", key="n"),
    NavItem(
        href="/compare", label="Compare", icon="compare", key="c", child_paths=("/comparisons",)
    ),
    NavItem(href="/sweeps", label="Sweeps", icon="sweeps", key="w", child_paths=("/sweeps/",)),
    NavItem(
        href="/reports/precision",
        label="Precision",
        icon="precision",
        key="p",
        child_paths=("/reports/",),
    ),
    NavItem(
        href="/datasets", label="Datasets", icon="datasets", key="d", child_paths=("/datasets/",)
    ),
    NavItem(href="/models", label="Models", icon="models", key="m", child_paths=("/models/",)),
    NavItem(href="/queue", label="Queue", icon="queue", key="q"),
    NavItem(href="/settings", label="Settings", icon="settings", key="s"),
    NavItem(
        href="/help",
        label="Help",
        icon="help",
        key="h",
        child_paths=("/help/", "/failures", "/docs"),
    ),
)


@dataclass(frozen=True, slots=True)
class Shortcut:
    keys: tuple[str, ...]
    description: str


SHORTCUTS = (
    Shortcut(("Ctrl", "K"), "Search pages, runs, data, models and settings, or run a command"),
    Shortcut(("/",), "Search on this page"),
    Shortcut(("?",), "Show these shortcuts"),
    *(Shortcut(("g", place.key), f"Go to {place.label}") for place in NAV_ITEMS),
)
