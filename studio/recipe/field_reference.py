"""A description of every setting of a recipe, from its declaration, for help pages and docs."""

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
    (MaxLen, "max_length", "at most {} characters"),
)
"""A constraint of a field, the attribute that holds its limit, and its text."""

_TYPE_NAMES = {int: "a whole number", float: "a number", bool: "yes or no", str: "text"}


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldReference:
    """The full description of one setting."""

    name: str
    """The dotted name in a recipe."""
    section: type[Section]
    knob: FieldSpec
    help: str
    required: bool
    default: object
    """The default value; None if a value is required."""
    allowed_values: str
    """The allowed values, for display."""
    choices: Mapping[str, str]
    """The choices with their titles; empty if it is not a choice."""
    upstream: str
    """The argument it becomes, such as `trl.SFTConfig.learning_rate`; empty if none."""

    @property
    def group(self) -> str:
        """The section of the recipe that holds it; empty at the top level."""
        return self.name.rpartition(".")[0]

    @property
    def label(self) -> str:
        return f"{self.knob.label} ({self.knob.unit})" if self.knob.unit else self.knob.label

    def matches(self, words: list[str]) -> bool:
        """Whether every word occurs in its name, label, help or choices."""
        searchable_text = (
            f"{self.name} {self.label} {self.help} {' '.join(self.choices.values())}".casefold()
        )
        return all(word in searchable_text for word in words)


def field_references(section: type[Section], prefix: str = "") -> Iterator[FieldReference]:
    """Yield every setting of a recipe or section, in order of declaration."""
    for name, info in section.model_fields.items():
        if spec := field_spec(info):
            yield _field_reference(section, prefix + name, spec, info)
    for name, info in section.model_fields.items():
        for inner in section_types(info.annotation):
            yield from field_references(inner, f"{prefix}{name}.")


def related_fields(
    entry: FieldReference, references: Mapping[str, FieldReference]
) -> list[FieldReference]:
    """Return the related settings: those it names, and those that name it."""
    referrers = [name for name, other in references.items() if entry.name in other.knob.related]
    return [references[name] for name in dict.fromkeys((*entry.knob.related, *referrers))]


def _field_reference(
    section: type[Section], name: str, spec: FieldSpec, info: FieldInfo
) -> FieldReference:
    is_upstreams = section.upstream and not spec.is_studio_own
    return FieldReference(
        name=name,
        section=section,
        knob=spec,
        help=field_descriptions(section).get(name.rpartition(".")[2], ""),
        required=info.is_required(),
        default=None if info.is_required() else info.default,
        allowed_values=_allowed_values(info),
        choices={choice: _choice_title(spec, choice) for choice in _choices(info.annotation)},
        upstream=f"{section.upstream}.{name.rpartition('.')[2]}" if is_upstreams else "",
    )


def _allowed_values(info: FieldInfo) -> str:
    kinds = [
        kind for kind in get_args(info.annotation) or (info.annotation,) if kind in _TYPE_NAMES
    ]
    kind = "one of the values below" if _choices(info.annotation) else _TYPE_NAMES[kinds[0]]
    bounds = " and ".join(filter(None, map(_bound_text, info.metadata)))
    empty = "; may be left empty" if NoneType in get_args(info.annotation) else ""
    return f"{kind}, {bounds}{empty}" if bounds else f"{kind}{empty}"


def _bound_text(rule: object) -> str:
    bound = next((row for row in _BOUND_TEXTS if isinstance(rule, row[0])), None)
    return bound[2].format(_format_limit(getattr(rule, bound[1]))) if bound else ""


def _format_limit(limit: object) -> str:
    return (
        f"{limit:,}".replace(",", "\N{NARROW NO-BREAK SPACE}")
        if isinstance(limit, int)
        else str(limit)
    )


def _choices(annotation: Any) -> tuple[str, ...]:  # noqa: ANN401 -- annotations have no narrower type
    return get_args(annotation) if get_origin(annotation) is Literal else ()


def _choice_title(spec: FieldSpec, choice: str) -> str:
    titles: dict[str, str] = {mode.name: mode.title for mode in PRECISIONS.values()}
    return (titles | dict(spec.choice_titles)).get(choice, choice)
