"""Every knob of a recipe in words, drawn from its declaration: for the help pages and the docs."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen
from pydantic.fields import FieldInfo

from studio.recipe.fields import FieldSpec, Section, field_spec, section_types
from studio.recipe.precision import PRECISIONS
from studio.schemas.field_docs import field_descriptions

_BOUND_TEXTS: tuple[tuple[type, str, str], ...] = (
    (Gt, "gt", "more than {}"),
    (Ge, "ge", "at least {}"),
    (Lt, "lt", "less than {}"),
    (Le, "le", "at most {}"),
    (MinLen, "min_length", "not empty"),
    (MaxLen, "max_length", "of at most {} characters"),
)
"""A rule of a field, where its limit stands, and what it is in words."""

_TYPE_NAMES = {int: "a whole number", float: "a number", bool: "yes or no", str: "text"}


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldReference:
    """All there is to say of one knob."""

    name: str
    """Dotted, as it stands in a recipe."""
    section: type[Section]
    knob: FieldSpec
    help: str
    required: bool
    default: object
    """What it is unless a recipe says otherwise; nothing where a value is required."""
    legal: str
    """Which values it takes, in words."""
    choices: Mapping[str, str]
    """What it may be, each with its title, where it is one of few."""
    upstream: str
    """The argument it becomes, as in `trl.SFTConfig.learning_rate`, or nothing."""

    @property
    def group(self) -> str:
        """The part of the recipe it stands in, or nothing at the top."""
        return self.name.rpartition(".")[0]

    @property
    def label(self) -> str:
        return f"{self.knob.label} ({self.knob.unit})" if self.knob.unit else self.knob.label

    def matches(self, words: list[str]) -> bool:
        """Whether each word stands somewhere in what is said of it."""
        said = f"{self.name} {self.label} {self.help} {' '.join(self.choices.values())}".casefold()
        return all(word in said for word in words)


def field_references(section: type[Section], prefix: str = "") -> Iterator[FieldReference]:
    """Yield every knob of a recipe or of one of its sections, in the order they are declared."""
    for name, info in section.model_fields.items():
        if knob := field_spec(info):
            yield _field_reference(section, prefix + name, knob, info)
    for name, info in section.model_fields.items():
        for inner in section_types(info.annotation):
            yield from field_references(inner, f"{prefix}{name}.")


def related_fields(
    entry: FieldReference, known: Mapping[str, FieldReference]
) -> list[FieldReference]:
    """Return the knobs to think of with this one: those it names, and those that name it."""
    naming = [name for name, other in known.items() if entry.name in other.knob.related]
    return [known[name] for name in dict.fromkeys((*entry.knob.related, *naming))]


def _field_reference(
    section: type[Section], name: str, knob: FieldSpec, info: FieldInfo
) -> FieldReference:
    is_upstreams = section.upstream and not knob.is_studio_own
    return FieldReference(
        name=name,
        section=section,
        knob=knob,
        help=field_descriptions(section).get(name.rpartition(".")[2], ""),
        required=info.is_required(),
        default=None if info.is_required() else info.default,
        legal=_allowed_values(info),
        choices={choice: _choice_title(knob, choice) for choice in _choices(info.annotation)},
        upstream=f"{section.upstream}.{name.rpartition('.')[2]}" if is_upstreams else "",
    )


def _allowed_values(info: FieldInfo) -> str:
    kinds = [
        kind for kind in get_args(info.annotation) or (info.annotation,) if kind in _TYPE_NAMES
    ]
    kind = "one of the values below" if _choices(info.annotation) else _TYPE_NAMES[kinds[0]]
    bounds = " and ".join(filter(None, map(_bound_text, info.metadata)))
    empty = "; it may be left empty" if NoneType in get_args(info.annotation) else ""
    return f"{kind}, {bounds}{empty}" if bounds else f"{kind}{empty}"


def _bound_text(rule: object) -> str:
    found = next((row for row in _BOUND_TEXTS if isinstance(rule, row[0])), None)
    return found[2].format(_format_limit(getattr(rule, found[1]))) if found else ""


def _format_limit(limit: object) -> str:
    return (
        f"{limit:,}".replace(",", "\N{NARROW NO-BREAK SPACE}")
        if isinstance(limit, int)
        else str(limit)
    )


def _choices(annotation: Any) -> tuple[str, ...]:  # noqa: ANN401 -- annotations have no narrower type
    return get_args(annotation) if get_origin(annotation) is Literal else ()


def _choice_title(knob: FieldSpec, choice: str) -> str:
    titles: dict[str, str] = {mode.name: mode.title for mode in PRECISIONS.values()}
    return (titles | dict(knob.titles)).get(choice, choice)
