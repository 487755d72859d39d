"""Settings: the fields a user can change. Types define allowed values, docstrings the help."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from types import UnionType
from typing import Any, ClassVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict
from pydantic.fields import FieldInfo

from studio.schemas.field_docs import FieldDocs


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
    """Return the fields of a section that its upstream config does not have."""
    specs = {name: field_spec(info) for name, info in section.model_fields.items()}
    return {name for name, spec in specs.items() if spec and spec.is_studio_own}


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
