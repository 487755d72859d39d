"""What becomes of the keys of another tool's file: the types that each tool's table is made of."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

NAME = "name"
"""Stands among the settings of a recipe for the name of the experiment."""

NOT_WRITTEN = object()

OFF: tuple[object, ...] = (None, False, "", "no", "none", "None", "false", 0, -1, [], {})
"""Values by which a tool says that something is not used."""


class KnownNames(Protocol):
    """The datasets and models of a studio."""

    def dataset(self, name: str) -> str:
        """Return what a dataset is called here; empty if there is none."""

    def model(self, name: str) -> str:
        """Return what a model is called here; empty if there is none."""


class NoNames:
    """The names of a studio that has nothing yet."""

    def dataset(self, name: str) -> str:
        del name
        return ""

    def model(self, name: str) -> str:
        del name
        return ""


@dataclass(frozen=True, slots=True)
class Use:
    """The settings, by dotted name, that a key becomes; none if nothing has to be set here."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""
    """What is different here; empty if it means the same."""


class NoCounterpartError(Exception):
    """A value that a recipe cannot express. Its text says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """The values of a file, as the tool that it is for would read them."""

    written: Mapping[str, Any]
    """The values by dotted key, without those left empty."""
    defaults: Mapping[str, Any]
    """What the tool uses for keys that are not written; may be functions of this file."""
    known: KnownNames
    method: str = ""
    """The name of the method of the recipe that is made."""

    def get(self, key: str) -> Any:  # noqa: ANN401 -- whatever a file holds
        """Return a value, or the tool's own default; None without one."""
        if key in self.written:
            return self.written[key]
        default = self.defaults.get(key)
        return default(self) if callable(default) else default

    def has(self, key: str) -> bool:
        """Whether a key is written, and not off."""
        return key in self.written and not is_off(self.written[key])


Convert = Callable[[Any, SourceFile], Any]
"""Takes a value and the whole file. Returns our value of the row's field, or a `Use`.

Raises NoCounterpartError if a recipe cannot express the value.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What becomes of one key."""

    key: str
    """The dotted name in the tool's file. Its value may be a group that is read as a whole."""
    fields: tuple[str, ...] = ()
    """Our dotted name; of several, the first that recipes of the method have."""
    convert: Convert
    note: str = ""
    """What is different here; empty if it means the same."""
    default: Any = NOT_WRITTEN
    """What the tool uses if the key is not written: a value, or a function of the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    name: str
    title: str
    marks: frozenset[str]
    """Keys that only files of this tool have."""
    rows: tuple[Row, ...]
    find_method: Callable[[SourceFile], str]
    remarks: Callable[[SourceFile], Iterable[str]] = lambda _file: ()
    """Yields what to know of the recipe as a whole, as sentences."""

    @property
    def table(self) -> dict[str, Row]:
        return {row.key: row for row in self.rows}

    @property
    def defaults(self) -> dict[str, Any]:
        """What it uses for keys that are not written."""
        return {row.key: row.default for row in self.rows if row.default is not NOT_WRITTEN}


def is_off(value: object) -> bool:
    """Whether a value says that something is not used."""
    return any(value is off or (type(value) is type(off) and value == off) for off in OFF)


def same(
    key: str,
    *fields: str,
    convert: Convert = lambda value, _file: value,
    note: str = "",
    default: Any = NOT_WRITTEN,  # noqa: ANN401 -- whatever a file holds
) -> Row:
    """Return a row for a key that is one of our settings."""
    return Row(key=key, fields=fields, convert=convert, note=note, default=default)


def combined(key: str, convert: Convert, default: Any = NOT_WRITTEN) -> Row:  # noqa: ANN401 -- whatever a file holds
    """Return a row for a key that only means something together with others."""
    return Row(key=key, convert=convert, default=default)


def absent(advice: str, *keys: str) -> Iterator[Row]:
    """Yield rows for keys that recipes do not have; they only matter if they are not off."""

    def convert(value: object, _file: SourceFile) -> Use:
        if is_off(value):
            return Use()
        raise NoCounterpartError(advice)

    yield from (Row(key=key, convert=convert) for key in keys)


def always(key: str, values: Collection[object], advice: str) -> Row:
    """Return a row for what cannot be chosen here, because it always has one of these values."""

    def convert(value: object, _file: SourceFile) -> Use:
        if value in values:
            return Use()
        raise NoCounterpartError(advice)

    return Row(key=key, convert=convert)
