"""Settings: the fields a user can change. Types define allowed values, docstrings the help."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen
from pydantic import BaseModel, ConfigDict
from pydantic.fields import FieldInfo

from studio.recipe.precision import PRECISIONS
from studio.schemas.field_docs import FieldDocs, field_descriptions


@dataclass(frozen=True, slots=True)
class FieldSpec:
    """How a field is displayed. Bounds, default and help are on the field itself."""

    label: str
    unit: str = ""
    advanced: bool = False
    choice_titles: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Display titles of choices whose names are not clear enough."""
    is_studio_own: bool = False
    """Whether upstream does not have it, in a section that otherwise uses upstream names."""
    usable_range: tuple[float, float] | None = None
    """The lowest and highest value that a run can use, if the type allows others."""
    related: tuple[str, ...] = ()
    """Dotted names of related settings in other sections."""
    names_model: bool = False
    """Whether it names a model: forms ask for it beside the base model, and suggest some."""
    is_json: bool = False
    """Whether its text is JSON, whose formatting does not matter."""


class Section(FieldDocs, BaseModel):
    """A titled group of settings. One section is one fieldset, one YAML block, one JSON object.

    Strict: "1e-4" or true instead of a number is a validation error. Forms and YAML, which contain
    only text, are validated with `validate_python(values, strict=False)`.
    """

    upstream: ClassVar[str] = ""
    """The upstream config that takes these settings under the same names; empty if none."""

    model_config = ConfigDict(
        strict=True,
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
    )


def field_spec(info: FieldInfo) -> FieldSpec | None:
    """Return the field's `FieldSpec`, or None for a field that users do not set."""
    return next((item for item in info.metadata if isinstance(item, FieldSpec)), None)


def own_fields(section: type[Section]) -> set[str]:
    """Return the fields of a section that its upstream config does not have.

    A section may fix the value of a field of its base: then only the base says whose field it is.
    """
    bases = (kind for kind in section.__mro__ if issubclass(kind, Section))
    fields = (item for kind in bases for item in kind.model_fields.items())
    specs = ((name, field_spec(info)) for name, info in fields)
    return {name for name, spec in specs if spec and spec.is_studio_own}


def section_types(annotation: Any) -> list[type[Section]]:  # noqa: ANN401 -- annotations have no narrower type
    """Return the section types a field may hold: several for a union of variants."""
    union = get_origin(annotation) in {UnionType, Union}
    options = get_args(annotation) if union else (annotation,)
    return [kind for kind in options if isinstance(kind, type) and issubclass(kind, Section)]


@dataclass(frozen=True, slots=True)
class VariantField:
    """The variants of a section that have a setting."""

    discriminator: str
    """The dotted name of the field that selects the variant."""
    variants: tuple[str, ...]
    """The variants that have the setting."""


@cache
def variant_fields(recipe: type[Section]) -> dict[str, VariantField]:
    """Return the settings that only some variants of a section have, by dotted name."""
    return dict(_find_variant_fields(recipe, ""))


@cache
def discriminators(recipe: type[Section]) -> dict[str, tuple[str, ...]]:
    """Return the dotted names of the fields that select a variant, with their variants."""
    return dict(_find_discriminators(recipe, ""))


def active_settings(
    recipe: type[Section], values: Mapping[str, Any], settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the settings that have an effect once all are applied to a recipe's values."""
    restricted = variant_fields(recipe)
    merged = {**values, **settings}
    return {
        name: value
        for name, value in settings.items()
        if (variant_field := restricted.get(name)) is None
        or merged[variant_field.discriminator] in variant_field.variants
    }


def _find_variant_fields(section: type[Section], prefix: str) -> Iterator[tuple[str, VariantField]]:
    for name, info in section.model_fields.items():
        variants = section_types(info.annotation)
        for variant in variants:
            yield from _find_variant_fields(variant, f"{prefix}{name}.")
        if len(variants) < 2:  # noqa: PLR2004 -- a single variant is not a choice
            continue
        switch = str(info.discriminator)
        variants_by_field: dict[str, list[str]] = {}
        for variant in variants:
            for own_name in variant.model_fields.keys() - {switch}:
                variants_by_field.setdefault(own_name, []).append(
                    str(variant.model_fields[switch].default)
                )
        for own_name, names in variants_by_field.items():
            yield (
                f"{prefix}{name}.{own_name}",
                VariantField(f"{prefix}{name}.{switch}", tuple(names)),
            )


def _find_discriminators(
    section: type[Section], prefix: str
) -> Iterator[tuple[str, tuple[str, ...]]]:
    for name, info in section.model_fields.items():
        variants = section_types(info.annotation)
        if len(variants) == 1:
            yield from _find_discriminators(variants[0], f"{prefix}{name}.")
        elif variants:
            switch = str(info.discriminator)
            names = tuple(str(variant.model_fields[switch].default) for variant in variants)
            yield f"{prefix}{name}.{switch}", names


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
        choices={choice: _choice_title(spec, choice) for choice in choices_of(info.annotation)},
        upstream=f"{section.upstream}.{name.rpartition('.')[2]}" if is_upstreams else "",
    )


def _allowed_values(info: FieldInfo) -> str:
    options = map(_without_metadata, get_args(info.annotation) or (info.annotation,))
    kinds = [kind for kind in options if kind in _TYPE_NAMES]
    kind = "one of the values below" if choices_of(info.annotation) else _TYPE_NAMES[kinds[0]]
    bounds = " and ".join(filter(None, map(_bound_text, info.metadata)))
    empty = "; may be left empty" if NoneType in get_args(info.annotation) else ""
    return f"{kind}, {bounds}{empty}" if bounds else f"{kind}{empty}"


def _without_metadata(annotation: Any) -> Any:  # noqa: ANN401 -- annotations have no narrower type
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


def _bound_text(rule: object) -> str:
    bound = next((row for row in _BOUND_TEXTS if isinstance(rule, row[0])), None)
    return bound[2].format(_format_limit(getattr(rule, bound[1]))) if bound else ""


def _format_limit(limit: object) -> str:
    return f"{limit:,}" if isinstance(limit, int) else str(limit)


def choices_of(annotation: object) -> tuple[str, ...]:
    """Return the values of a `Literal`; none for another type."""
    return get_args(annotation) if get_origin(annotation) is Literal else ()


def section_intro(section: type[BaseModel]) -> str:
    """Return the docstring's first paragraph; the rest is for developers."""
    return (section.__doc__ or "").partition("\n\n")[0].strip()


def title_from_name(name: str) -> str:
    return name.rpartition(".")[2].replace("_", " ").capitalize()


def _choice_title(spec: FieldSpec, choice: str) -> str:
    titles: dict[str, str] = {mode.name: mode.title for mode in PRECISIONS.values()}
    return (titles | dict(spec.choice_titles)).get(choice, choice)
