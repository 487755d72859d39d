"""Paths of templates, static files and migrations, in the installed wheel or the checkout."""

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def templates_dir() -> Path:
    return _resources_dir() / "templates"


def static_dir() -> Path:
    return _resources_dir() / "static"


def migrations_dir() -> Path:
    return _resources_dir() / "migrations"


def has_vendored_scripts() -> bool:
    """Whether the third-party JavaScript is installed; pages do not work without it."""
    return (static_dir() / "vendor" / ".stamp").exists()


def _resources_dir() -> Path:
    # A standard wheel has the folders inside the package; an editable install uses the checkout.
    carried = _PACKAGE / "_resources"
    return carried if carried.is_dir() else _PACKAGE.parent
