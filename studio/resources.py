"""Where templates, static files and migrations are: in the installed wheel or in the checkout."""

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def templates() -> Path:
    return _resources() / "templates"


def static() -> Path:
    return _resources() / "static"


def migrations() -> Path:
    return _resources() / "migrations"


def has_scripts() -> bool:
    """Whether the JavaScript that others wrote is in place; without it a page is dead."""
    return (static() / "vendor" / ".stamp").exists()


def _resources() -> Path:
    # A standard wheel carries the folders inside the package; an editable one reads the checkout.
    carried = _PACKAGE / "_resources"
    return carried if carried.is_dir() else _PACKAGE.parent
