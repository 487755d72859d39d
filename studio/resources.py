"""Where templates, static files and migrations are: in the installed wheel or in the checkout."""

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def templates_dir() -> Path:
    return _resources_dir() / "templates"


def static_dir() -> Path:
    return _resources_dir() / "static"


def migrations_dir() -> Path:
    return _resources_dir() / "migrations"


def has_vendored_scripts() -> bool:
    """Whether the JavaScript that others wrote is in place; without it a page is dead."""
    return (static_dir() / "vendor" / ".stamp").exists()


def _resources_dir() -> Path:
    # A standard wheel carries the folders inside the package; an editable one reads the checkout.
    carried = _PACKAGE / "_resources"
    return carried if carried.is_dir() else _PACKAGE.parent
