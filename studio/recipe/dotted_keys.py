"""Convert between nested recipes and the dotted names of forms and command lines."""

from collections.abc import Iterable, Mapping
from typing import Any

from studio.errors import InvalidError


def nest(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Turn ("a.b", 1) pairs into {"a": {"b": 1}}. If a name repeats, the last value wins.

    Raises:
        InvalidError: a name is both a value and a group of values.

    """
    nested: dict[str, Any] = {}
    for name, value in pairs:
        *parents, leaf = name.split(".")
        node: Any = nested
        for parent in parents:
            node = node.setdefault(parent, {})
            if not isinstance(node, dict):
                raise InvalidError(f"{parent} is both a value and a group of fields. Use one.")
        node[leaf] = value
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
    """Return `base`, recursively updated with `changes`.

    A group whose `kind` changes is replaced entirely, because the variants have different fields.
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
