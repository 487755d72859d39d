"""Dotted names: how a nested recipe travels through a flat form or a command line."""

from collections.abc import Iterable, Mapping
from typing import Any

from studio.errors import InvalidError


def nest(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Turn ("a.b", 1) pairs into {"a": {"b": 1}}. A name given twice keeps its last value.

    Raises:
        InvalidError: one name is both a value and a group of values.

    """
    nested: dict[str, Any] = {}
    for name, value in pairs:
        *parents, leaf = name.split(".")
        here: Any = nested
        for parent in parents:
            here = here.setdefault(parent, {})
            if not isinstance(here, dict):
                raise InvalidError(f"{parent} is given both a value and fields inside it.")
        here[leaf] = value
    return nested


def flatten(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Turn {"a": {"b": 1}} into {"a.b": 1}."""
    flat: dict[str, Any] = {}
    for name, value in nested.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat


def merge(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` with the leaves of `changes` laid over it.

    A group whose `kind` changes is replaced whole: the fields of one kind are not the other's.
    """
    merged = dict(base)
    for name, value in changes.items():
        old = merged.get(name)
        if not (isinstance(old, Mapping) and isinstance(value, Mapping)):
            merged[name] = value
        elif value.get("kind", old.get("kind")) != old.get("kind"):
            merged[name] = dict(value)
        else:
            merged[name] = merge(old, value)
    return merged
